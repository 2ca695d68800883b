"""Experiments under Flower's own simulation, with our ServerApp and ClientApp, and what differs from one process.

A few devices take part, some of which decline now and then; the others of the experiment's clients never come. What
was seen is played again in one process (a run's replay.toml): rounds, bytes, the server's state and what was measured
must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from turnout.deploy.app import for_devices
from turnout.deploy.apps import serve_next, simulate
from turnout.deploy.link import Link
from turnout.deploy.server import serve_experiment
from turnout.errors import UserError
from turnout.experiment import Experiment, Stop, World
from turnout.machine.checksums import load_tensors
from turnout.machine.files import write_whole
from turnout.running.config.read import load, to_toml
from turnout.running.records.checkpoint import NAME
from turnout.running.records.records import Records
from turnout.running.runs import run
from turnout.testing.parity import Difference, of_tensors, one_process

NODES = 5
MOODY = (1, 3)  # devices that decline now and then
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
                serve_next(Path(home), folders[name].name)
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
        rule = f'[policy]\nown = "{__name__}:now_and_then"\n' if i in MOODY else ""
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
