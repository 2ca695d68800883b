"""The ServerApp and the ClientApp of a Flower app (`turnout deploy init` writes a pyproject.toml that names them).

    [tool.flwr.app.components]
    serverapp = "turnout.deploy.apps:server_app"
    clientapp = "turnout.deploy.apps:client_app"

The server's run config has `experiment` (a file), `out` (the run's folder) and `keys` (a folder of the devices' public
keys, or ""); a node's config has `device`, the device's own file.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from turnout.deploy.answering import ClientDevice
from turnout.deploy.device import open_device
from turnout.deploy.grid import GridLink, answered
from turnout.deploy.server import serve
from turnout.running.reported import NO_HOOKS

server_app = ServerApp()
client_app = ClientApp()
_devices: dict[str, ClientDevice] = {}  # by file, as long as the process stays


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run config; a run that is in its folder already is resumed."""
    config = context.run_config
    keys = str(config.get("keys") or "")
    places = Path(str(config["experiment"])), Path(str(config["out"])), Path(keys) if keys else None
    # No caller is above this process: the report writer and trackers are found by name, if they are installed.
    has_view = importlib.util.find_spec("turnout.view") is not None
    serve(GridLink(grid), *places, hooks=importlib.import_module("turnout.view").HOOKS if has_view else NO_HOOKS)


@client_app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer the server's question for the device that the node's config names."""
    return answered(device_of(str(context.node_config["device"])), message)


def device_of(file: str) -> ClientDevice:
    """The device of a file, made once in a process."""
    if file not in _devices:
        _devices[file] = open_device(Path(file))
    return _devices[file]
