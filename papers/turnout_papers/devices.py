"""Runs of a plan as deployments on this machine: a real SuperLink, and devices with slow links and slow processors.

Each run is a folder: `run` is the run on devices, `replay` the same in one process, where clients' own models can be
measured after every round, which on the devices would take as long as a round. They must give the same model, to the
bit.

A link of a given speed is a network namespace for the device, with a virtual cable that `tc` shapes. That needs root
(and Linux). Otherwise devices limit their speed themselves (`down_mbps` and `up_mbps` of a device's file), which leaves
out the effect of a real link on many small messages.

What deploys is imported when it is used: it needs turnout[flower], which other studies do without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from turnout.deploy.settings import Flower
from turnout.errors import UserError
from turnout.experiment import Evaluate
from turnout.machine.files import write_whole
from turnout.running.config.read import load
from turnout.running.plan import PlannedRun, RunPlan
from turnout.running.result import Run, RunName
from turnout.running.runs import Outcome, run

HOW = "links.txt"  # in a run's place: how its links were shaped
BURST, QUEUE = "16kb", "500ms"  # bytes that may go at once, and how long a packet may wait


@dataclass(frozen=True)
class Testbed:
    """Devices that are all alike.

    mbps          speed of their links in megabits a second, both ways
    step_seconds  seconds that a step of training takes at least
    every_round   whether the replay measures clients' own models after every round, or in the end only, as devices do
    """

    mbps: float
    step_seconds: float
    every_round: bool = True

    def play(self, plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None) -> Outcome:
        """The runs of a plan, one after another whatever `jobs` is: they are timed."""
        from turnout.deploy.server import FINISHED, beside

        shaped, runs = can_shape(), {}
        for planned in plan.runs:
            place = (plan.out / planned.path).absolute()
            if not beside(place / "run", FINISHED).exists():
                deploy(planned, place, self, shaped, quiet)
            runs[RunName(planned.variant, planned.seed)] = Run(place / "run", planned.experiment, data_dir)
            replay(place, self.every_round)
        return Outcome(runs, [])


def deploy(planned: PlannedRun, place: Path, bed: Testbed, shaped: bool, quiet: bool) -> None:
    """One run on real devices."""
    from turnout.deploy.demo import write_server
    from turnout.deploy.processes import LOOK, Process, device_process, free_port

    settings = planned.experiment.runtime
    if not isinstance(settings, Flower):
        raise UserError(f'{planned.name} has no runtime.kind = "flower": a testbed runs on devices')
    serving = write_server(place, planned.experiment, "0.0.0.0" if shaped else "127.0.0.1", free_port(), True)
    serving.say = lambda words: None if quiet else print(f"{planned.name}: {words}", file=sys.stderr)
    write_whole(place / HOW, "tc" if shaped else "the devices")
    with ExitStack() as stack:
        links = [ShapedLink(i, bed.mbps) for i in range(settings.clients)] if shaped else []
        for link in links:
            stack.callback(link.remove)
            link.lay()
        stack.callback(serving.stop)
        serving.start()
        devices: list[Process] = []
        for i in range(settings.clients):
            file, address = place / f"device-{i}.toml", links[i].here if shaped else "127.0.0.1"
            speeds = "" if shaped else f"down_mbps = {bed.mbps}\nup_mbps = {bed.mbps}\n"
            write_whole(
                file,
                f'experiment = "experiment.toml"\nclient = "{i}"\nfolder = "disk-{i}"\n'
                f'step_seconds = {bed.step_seconds}\nsuperlink = "{address}:{serving.place.port}"\n{speeds}',
            )
            process = device_process([file], file.with_suffix(".log"), True)
            command = links[i].command(list(process.command)) if shaped else process.command
            devices.append(replace(process, command=command).start())
            stack.callback(devices[i].kill)
        while not serving.watch():
            for device in devices:
                if not device.runs:
                    raise UserError(f"a device of {planned.name} has died: {device.log} has the reason")
            time.sleep(LOOK)


def replay(place: Path, every_round: bool) -> Run:
    """The run in one process; a model that differs from the devices' is an error."""
    from turnout.deploy.demo import same_model

    again = load(place / "run" / "replay.toml")
    again = again.but(evaluate=Evaluate(personal=True)) if every_round else again
    done = run(again, place / "replay", resume=True, quiet=True)
    if not same_model(place / "run", done):
        raise UserError(f"the replay of {place / 'run'} gives another model: its rounds are not those of the devices")
    return done


# -- links


@dataclass(frozen=True)
class ShapedLink:
    """A cable between this machine and one device.

    number  tells several apart (0 to 99)
    mbps    its speed in megabits a second
    """

    number: int
    mbps: float

    @property
    def space(self) -> str:
        """The device's network namespace."""
        return f"turnout-{os.getpid()}-{self.number}"

    @property
    def ends(self) -> tuple[str, str]:
        """The cable's names on this machine and in the namespace."""
        return f"to{os.getpid()}.{self.number}", f"up{self.number}"

    @property
    def here(self) -> str:
        """The server's address for the device."""
        return f"10.{64 + os.getpid() // 250 % 64}.{os.getpid() % 250}.{2 * self.number}"

    def command(self, words: list[str]) -> list[str]:
        """A command that runs at the device's end."""
        return ["ip", "netns", "exec", self.space, *words]

    def lay(self) -> None:
        """Make the namespace and the cable, and shape both directions."""
        (ours, theirs), there = self.ends, f"{self.here.rpartition('.')[0]}.{2 * self.number + 1}"
        shape = ["root", "tbf", "rate", f"{self.mbps:g}mbit", "burst", BURST, "latency", QUEUE]
        for words in (
            f"ip netns add {self.space}",
            f"ip link add {ours} type veth peer name {theirs} netns {self.space}",
            f"ip addr add {self.here}/31 dev {ours}",
            f"ip link set {ours} up",
            f"ip -n {self.space} addr add {there}/31 dev {theirs}",
            f"ip -n {self.space} link set {theirs} up",
            f"ip -n {self.space} link set lo up",
            " ".join(["tc", "qdisc", "add", "dev", ours, *shape]),
            " ".join(self.command(["tc", "qdisc", "add", "dev", theirs, *shape])),
        ):
            try:
                done = subprocess.run(words.split(), capture_output=True, text=True, check=False)
            except OSError as error:
                raise UserError(f"{words.split()[0]} cannot be run: {error.strerror}") from error
            if done.returncode:
                raise UserError(f"{words}: {done.stderr.strip()}")

    def remove(self) -> None:
        for words in (("link", "del", self.ends[0]), ("netns", "del", self.space)):
            subprocess.run(["ip", *words], capture_output=True, check=False)


def can_shape() -> bool:
    """Whether such links can be made here; tries a real one."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    link = ShapedLink(99, 8.0)
    try:
        link.lay()
    except UserError:
        return False
    finally:
        link.remove()
    return True
