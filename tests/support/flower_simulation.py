"""Experiments under Flower's own simulation, with our ServerApp and ClientApp, and what differs from one process:
`python flower_simulation.py RECIPE/VARIANT...` prints it.

A few devices take part, some of which decline now and then; the others of the experiment's clients never come. What
was seen is played again in one process (a run's replay.toml): rounds, bytes, the server's state and what was measured
must be the same.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from parity import Difference, of_tensors, one_process, small_recipes
from turnout.deploy.app import for_devices
from turnout.deploy.apps import GridLink, answered, device_of
from turnout.deploy.link import Link
from turnout.deploy.server import serve_experiment
from turnout.errors import UserError
from turnout.experiment import Experiment, Stop, World
from turnout.machine.checksums import load_tensors
from turnout.machine.files import write_whole
from turnout.recipes import cook, recipes
from turnout.running.config.read import load, to_toml
from turnout.running.records.checkpoint import NAME
from turnout.running.records.records import Records
from turnout.running.runs import run

NODES = 5
MOODY = (1, 3)  # devices that decline now and then
CURRENT = "current"  # a file of a simulation: the folder whose devices the nodes are now
COLUMNS = ("asked", "answered", "counted", "bytes_up", "bytes_down")


def now_and_then() -> bool:
    """Whether a device works, by chance."""
    return random.random() < 0.7


def simulated(experiments: Mapping[str, Experiment]) -> dict[str, Difference | str]:
    """What differs, by name; in words where devices cannot do what an experiment asks for."""
    refused: dict[str, str] = {}
    with TemporaryDirectory(prefix="turnout-") as home:
        folders = {name: Path(home) / str(i) for i, name in enumerate(experiments)}
        ready = {name: _written(experiments[name], folder) for name, folder in folders.items()}

        def main(link: Link) -> None:
            for name, experiment in ready.items():
                write_whole(Path(home) / CURRENT, folders[name].name)
                try:
                    serve_experiment(link, experiment, folders[name] / "run")
                except UserError as mistake:
                    refused[name] = str(mistake)

        simulate(main, Path(home), NODES)
        return {name: refused.get(name) or _difference(folder / "run") for name, folder in folders.items()}


def _written(experiment: Experiment, folder: Path) -> Experiment:
    """The files of an experiment and its devices; the experiment on devices."""
    folder.mkdir()
    bare = experiment.but(world=World(experiment.world.data), runtime=one_process(experiment), stop=Stop())
    clients = experiment.world.data.load(experiment.seed, None).clients
    settings: dict[str, Any] = {"clients": clients, "start_with": NODES, "server_data": True}
    settings |= {"round_seconds": 120.0, "request_seconds": 60.0}
    found = for_devices(bare).but(**{f"runtime.{name}": value for name, value in settings.items()})
    write_whole(folder / "experiment.toml", to_toml(found))
    for i in range(NODES):
        rule = '[policy]\nown = "flower_simulation:now_and_then"\n' if i in MOODY else ""
        text = f'experiment = "experiment.toml"\nclient = "{i}"\nfolder = "disk-{i}"\n{rule}'
        write_whole(folder / f"device-{i}.toml", text)
    return found


def _difference(out: Path) -> Difference | str:
    try:
        again = out.with_name("again")
        run(load(out / "replay.toml"), again, quiet=True)
        mine, theirs = (load_tensors(folder / NAME, "")[0] for folder in (again, out))
        shared = mine.keys() & theirs.keys()
        found = [of_tensors({n: mine[n] for n in shared}, {n: theirs[n] for n in shared}, "state", exact=True)]
        with Records.read(again / "records.sqlite") as a, Records.read(out / "records.sqlite") as b:
            for name in COLUMNS:
                one, other = a.column(name).tolist(), b.column(name).tolist()
                assert one == other, f"{name} is {one} in one process and {other} elsewhere"
            metrics = [n for n in a.metrics() if n in b.metrics() and not n.startswith("personal_")]
            curves = [{n: torch.as_tensor(records.curve(n)[1]) for n in metrics} for records in (a, b)]
        found.append(of_tensors(curves[0], curves[1], "measured", exact=True))
        return max(found, key=lambda difference: difference.largest)
    except UserError as mistake:
        return str(mistake)
    except AssertionError as error:  # not even the same rounds
        return Difference(float("inf"), str(error))


def simulate(main: Callable[[Link], None], folder: Path, nodes: int, workers: int = 2) -> None:
    """Call `main` with a link to so many nodes, as a ServerApp in Flower's simulation, on workers of Ray.

    Node i is the device of the file device-i.toml in the folder that the file CURRENT names, so that one simulation
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
        return answered(device_of(folder / current / f"device-{node}.toml"), message)

    machine = {"num_cpus": workers, "include_dashboard": False}
    settings: Any = {"init_args": machine, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, nodes, backend_config=settings)
    if failed:
        raise failed[0]


if __name__ == "__main__":
    known = small_recipes({name: cook(name) for name in recipes()})
    for name, found in simulated({name: known[name] for name in sys.argv[1:]}).items():
        print(f"{name}: {found}")
