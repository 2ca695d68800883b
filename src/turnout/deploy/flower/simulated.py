"""Flower's own simulation: a server's work on nodes that are workers of Ray on this machine (`flwr.simulation`).

Node i of the simulation is the device of the file device-i.toml in the folder that `current` names, so that one
simulation can serve several runs, one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnout.deploy.flower.link import Link
from turnout.machine.files import write_whole

CURRENT = "current"


def serve_next(folder: Path, name: str) -> None:
    """From now on nodes are the devices of this folder below."""
    write_whole(folder / CURRENT, name)


def simulate(main: Callable[[Link], None], folder: Path, nodes: int, workers: int = 2) -> None:
    """Call `main` with a link to so many nodes, as a ServerApp in Flower's simulation."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from turnout.deploy.flower.apps import answered, device_of
    from turnout.deploy.flower.grid import GridLink

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
