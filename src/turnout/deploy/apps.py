"""The ServerApp and the ClientApp of a Flower app (`turnout deploy init` writes a pyproject.toml that names them), and
Flower's own simulation of them.

    [tool.flwr.app.components]
    serverapp = "turnout.deploy.apps:server_app"
    clientapp = "turnout.deploy.apps:client_app"

The server's run config has `experiment` (a file), `out` (the run's folder) and `keys` (a folder of the devices' public
keys, or ""); a node's config has `device`, the device's own file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from turnout.deploy.answering import ClientDevice
from turnout.deploy.device import open_device
from turnout.deploy.grid import GridLink, answered
from turnout.deploy.link import Link
from turnout.deploy.server import serve
from turnout.machine.files import write_whole
from turnout.running.tracking import NO_HOOKS

CURRENT = "current"  # a file of a simulation: the folder whose devices the nodes are now
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


def serve_next(folder: Path, name: str) -> None:
    """Make the nodes of a simulation the devices of another folder below `folder`."""
    write_whole(folder / CURRENT, name)


def simulate(main: Callable[[Link], None], folder: Path, nodes: int, workers: int = 2) -> None:
    """Call `main` with a link to so many nodes, as a ServerApp in Flower's simulation, on workers of Ray.

    Node i is the device of the file device-i.toml in the folder that `serve_next` named last, so that one simulation
    can serve several runs, one after another.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from flwr.simulation import run_simulation

    server_app, client_app, failed = ServerApp(), ClientApp(), list[BaseException]()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        try:
            main(GridLink(grid))
        except BaseException as error:
            failed.append(error)

    @client_app.query()
    def answer(message: Message, context: Context) -> Message:
        node, current = context.node_config["partition-id"], (folder / CURRENT).read_text()
        return answered(device_of(str(folder / current / f"device-{node}.toml")), message)

    machine = {"num_cpus": workers, "include_dashboard": False}
    settings: Any = {"init_args": machine, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, nodes, backend_config=settings)
    if failed:
        raise failed[0]
