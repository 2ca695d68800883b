"""Runs of a plan as deployments on this machine: a real SuperLink, and devices with slow links and slow processors.

Each run is a folder: `run` is the run on devices, `replay` the same in one process, with clients' own models measured
after every round, which on the devices would take as long as a round. They must give the same model, to the bit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from turnout.deploy.app import PROJECT
from turnout.deploy.flower.settings import Flower
from turnout.deploy.links import ShapedLink, can_shape
from turnout.deploy.processes import Process, ServerPlace, device_process, free_port
from turnout.deploy.server import FINISHED, beside
from turnout.deploy.serving import LOOK, Serving
from turnout.errors import UserError
from turnout.experiment import Evaluate, Experiment
from turnout.machine.files import write_whole
from turnout.running.config.read import load, to_toml
from turnout.running.plan import PlannedRun, RunPlan
from turnout.running.planned import Outcome
from turnout.running.result import Run, RunName, open_one
from turnout.running.runs import run

HOW = "links.txt"  # in a run's place: what its links were shaped by


@dataclass(frozen=True)
class Testbed:
    """Devices alike: links of so many megabits a second both ways, and so many seconds a step of training at least."""

    mbps: float
    step_seconds: float

    def play(self, plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None) -> Outcome:
        """The runs of a plan, one after another, whatever `jobs` says: they are timed."""
        shaped, runs = can_shape(), {}
        for planned in plan.runs:
            place = (plan.out / planned.path).absolute()
            if not beside(place / "run", FINISHED).exists():
                deploy(planned, place, self, shaped, quiet)
            runs[RunName(planned.variant, planned.seed)] = Run(place / "run", planned.experiment, data_dir)
            replay(place)
        return Outcome(runs, [])


def deploy(planned: PlannedRun, place: Path, bed: Testbed, shaped: bool, quiet: bool) -> None:
    """One run on real devices."""
    settings = planned.experiment.runtime
    if not isinstance(settings, Flower):
        raise UserError(f'{planned.name} has no runtime.kind = "flower": a testbed runs on devices')
    with ExitStack() as stack:
        links = [ShapedLink(i, bed.mbps) for i in range(settings.clients)] if shaped else []
        for link in links:
            stack.callback(link.remove)
            link.lay()
        write_whole(_folder(place) / HOW, "tc" if shaped else "the devices")
        serving = _serving(planned.experiment, place, "0.0.0.0" if shaped else "127.0.0.1")
        serving.say = partial(_say, planned.name, quiet)
        devices = stack.enter_context(_started(serving, bed, links, settings.clients))
        while not serving.watch():
            for device in devices:
                if not device.runs:
                    raise UserError(f"a device of {planned.name} has died: {device.log} says why")
            time.sleep(LOOK)


def _say(name: str, quiet: bool, words: str) -> None:
    if not quiet:
        print(f"{name}: {words}", file=sys.stderr)


def _folder(place: Path) -> Path:
    (place / "app").mkdir(parents=True, exist_ok=True)
    return place


def _serving(experiment: Experiment, place: Path, host: str) -> Serving:
    file, out = place / "experiment.toml", place / "run"
    write_whole(file, to_toml(experiment))
    write_whole(place / "app" / "pyproject.toml", PROJECT.format(experiment=file, out=out, keys=""))
    return Serving(ServerPlace(place / "app", place / "server", host, free_port()), file, out)


@contextmanager
def _started(serving: Serving, bed: Testbed, links: list[ShapedLink], clients: int) -> Iterator[list[Process]]:
    """The server and its devices while they run."""
    devices: list[Process] = []
    try:
        serving.start()
        for i in range(clients):
            link = links[i] if links else None
            devices.append(_device(serving, i, bed, link).start())
        yield devices
    finally:
        for device in devices:
            device.kill()
        serving.stop()


def _device(serving: Serving, i: int, bed: Testbed, link: ShapedLink | None) -> Process:
    place, port = serving.experiment.parent, serving.place.port
    speeds = f"down_mbps = {bed.mbps}\nup_mbps = {bed.mbps}\n" if link is None else ""
    file = place / f"device-{i}.toml"
    write_whole(
        file,
        f'experiment = "experiment.toml"\nclient = "{i}"\nfolder = "disk-{i}"\nstep_seconds = {bed.step_seconds}\n'
        f'superlink = "{"127.0.0.1" if link is None else link.here}:{port}"\n{speeds}',
    )
    process = device_process([file], file.with_suffix(".log"))
    return process if link is None else replace(process, command=link.command(list(process.command)))


def replay(place: Path) -> Run:
    """The run in one process, measured after every round; another model than the devices' is a mistake."""
    again = load(place / "run" / "replay.toml").but(evaluate=Evaluate(personal=True))
    done = run(again, place / "replay", resume=True, quiet=True)
    seen, replayed = (found.model().state_dict() for found in (open_one(place / "run"), done))
    if not all(torch.equal(seen[name], replayed[name]) for name in seen):
        raise UserError(f"the replay of {place / 'run'} gives another model: its rounds are not those of the devices")
    return done
