"""The ServerApp and the ClientApp of a Flower app; `turnout deploy init` writes a pyproject.toml that names them.

    [tool.flwr.app.components]
    serverapp = "turnout.deploy.flower.apps:server_app"
    clientapp = "turnout.deploy.flower.apps:client_app"

The server's run config has `experiment` (a file), `out` (the run's folder) and `keys` (a folder of the devices' public
keys, or ""); a node's config has `device`, the device's own file. What they run is in the room `deploy`, above this
one, and named by its path.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from turnout.deploy.flower.grid import GridLink, content_of, parts_of
from turnout.running.reported import NO_HOOKS

if TYPE_CHECKING:
    from turnout.deploy.flower.answering import Device

server_app = ServerApp()
client_app = ClientApp()
_devices: dict[str, Any] = {}  # by file, for as long as the process stays


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run config; a run that is in its folder already goes on."""
    config = context.run_config
    serve = importlib.import_module("turnout.deploy.server").serve
    keys = str(config.get("keys") or "")
    places = Path(str(config["experiment"])), Path(str(config["out"])), Path(keys) if keys else None
    # No caller of ours is above this process: reports and trackers are found by name, where they are installed.
    here = importlib.util.find_spec("turnout.view") is not None
    serve(GridLink(grid), *places, hooks=importlib.import_module("turnout.view").HOOKS if here else NO_HOOKS)


@client_app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer the server's question for the device that the node's config names."""
    device = device_of(str(context.node_config["device"]))
    return answered(device, message)


def answered(device: Device, message: Message) -> Message:
    return Message(content_of(device.answer(parts_of(message.content))), reply_to=message)


def device_of(file: str) -> Device:
    """The device of a file, made once a process."""
    if file not in _devices:
        _devices[file] = importlib.import_module("turnout.deploy.device").open_device(Path(file))
    device: Device = _devices[file]
    return device
