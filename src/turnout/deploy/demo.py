"""`turnout deploy demo`: a server and five devices on this machine, and everything that goes wrong with real ones.

Device 0 is well. Device 1 has quiet moments in which it declines. Device 2 is killed without warning and started again.
Device 3 is slow: it does what it can until the deadline. Device 4 joins late, and device 0 leaves before the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from turnout.data import Digits
from turnout.deploy.device import ask_to_leave
from turnout.deploy.flower.settings import Flower
from turnout.deploy.processes import Process, ServerPlace, device_process, free_port
from turnout.deploy.serving import LOOK, Say, Serving
from turnout.experiment import Algorithm, Experiment, World
from turnout.machine.files import write_whole
from turnout.models import MLP
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.weighting import ByWork
from turnout.running.config.read import load, to_toml
from turnout.running.records.records import Records
from turnout.running.result import open_one
from turnout.running.runs import run

DEVICES = 5
SLOW, MOODY, LATE = 3, 1, 4


def demo_experiment(rounds: int, round_seconds: float = 12.0) -> Experiment:
    """Scheme C on digits; the round closes after a few seconds, whatever the slow device has done by then."""
    return Experiment(
        world=World(Digits(clients=DEVICES)),
        model=MLP(32),
        algorithm=Algorithm(Local(SGD(lr=0.1), epochs=2, batch_size=10), weighting=ByWork()),
        rounds=rounds,
        runtime=Flower(
            clients=DEVICES, start_with=DEVICES - 1, server_data=True, round_seconds=round_seconds, request_seconds=6.0
        ),
        title="demo",
    )


def moody() -> bool:
    """Works in two of three moments of five seconds."""
    return int(time.time() / 5) % 3 != 0


@dataclass
class Demo:
    """The processes of a demonstration in a folder."""

    folder: Path
    rounds: int
    say: Say
    round_seconds: float = 12.0
    port: int = field(default_factory=free_port)
    devices: dict[int, Process] = field(default_factory=dict)

    def write(self) -> Serving:
        """The files of the server and of the devices."""
        from turnout.deploy.app import PROJECT

        experiment, out = self.folder / "experiment.toml", self.folder / "run"
        (self.folder / "app").mkdir(parents=True, exist_ok=True)
        write_whole(experiment, to_toml(demo_experiment(self.rounds, self.round_seconds)))
        write_whole(self.folder / "app" / "pyproject.toml", PROJECT.format(experiment=experiment, out=out, keys=""))
        for i in range(DEVICES):
            write_whole(self.file(i), self.device_text(i))
        place = ServerPlace(self.folder / "app", self.folder / "server", port=self.port)
        return Serving(place, experiment, out, say=self.say)

    def file(self, i: int) -> Path:
        return self.folder / f"device-{i}.toml"

    def device_text(self, i: int) -> str:
        slow = "slowness = 4.3\n" if i == SLOW else ""
        rule = '[policy]\nown = "turnout.deploy.demo:moody"\n' if i == MOODY else ""
        return (f'experiment = "experiment.toml"\nclient = "{i}"\nsuperlink = "127.0.0.1:{self.port}"\n'
                f'folder = "disk-{i}"\n{slow}{rule}')  # fmt: skip

    def start(self, i: int) -> None:
        process = device_process([self.file(i)], self.folder / f"device-{i}.log")
        process.command = [*process.command, "--allow", "turnout"]  # for the rule of the device MOODY
        self.devices[i] = process.start()

    def stop(self) -> None:
        for process in self.devices.values():
            process.kill()


def play(folder: Path, rounds: int, say: Say) -> None:
    """Run the demonstration, then its replay in one process."""
    demo = Demo(folder, rounds, say)
    serving = demo.write()
    acts = script(demo, serving, rounds)
    try:
        serving.start()
        for i in range(DEVICES):
            if i != LATE:
                demo.start(i)
        while not serving.watch():
            for t in [t for t in acts if t <= serving.rounds_done()]:
                acts.pop(t)()
            time.sleep(LOOK)
    finally:
        demo.stop()
        serving.stop()
    show(folder / "run", say)
    compare(folder / "run", say)


def script(demo: Demo, serving: Serving, rounds: int) -> dict[int, Callable[[], None]]:
    """What happens when so many rounds have ended."""

    def kill() -> None:
        demo.say("  device 2 is killed without warning")
        demo.devices[2].kill()

    def again() -> None:
        demo.say("  device 2 is started again")
        demo.start(2)

    def join() -> None:
        demo.say("  device 4 is started for the first time")
        demo.start(LATE)

    def server_dies() -> None:
        pid = serving.pid()
        demo.say(f"  the server's process {pid} is killed without warning")
        serving.end_run()

    def leave() -> None:
        demo.say("  device 0 asks to leave")
        ask_to_leave(demo.file(0))

    at = [max(1, round(rounds * part)) for part in (0.15, 0.35, 0.4, 0.55, 0.75)]
    found: dict[int, Callable[[], None]] = {}
    for t, act in zip(at, (kill, again, join, server_dies, leave), strict=True):
        while t in found:
            t += 1
        found[t] = act
    return found


def show(out: Path, say: Say) -> None:
    """The table of what happened, round by round and device by device."""
    with Records.read(out / "records.sqlite") as records:
        clients, last = records.clients(), records.last_round() or 0
        work = dict(zip(zip(clients["client"].tolist(), clients["round"].tolist(), strict=True),
                        clients["work"].tolist(), strict=True))  # fmt: skip
        accuracy = records.curve("global_accuracy")[1]
    say("\nwork of each device, in tenths (* all of it, . asked and absent)")
    for i in range(DEVICES):
        say(f"  device {i}  " + " ".join(_mark(work.get((i, t))) for t in range(last + 1)))
    say(f"global_accuracy {accuracy[0]:.3f} -> {accuracy[-1]:.3f}; the report is {out / 'report.html'}")


def _mark(part: float | None) -> str:
    if part is None:
        return " "
    return "." if part == 0 else "*" if part >= 1 else str(int(10 * part))


def compare(out: Path, say: Say) -> None:
    """Replay in one process what was seen: the model must be the same."""
    again = run(load(out / "replay.toml"), out.with_name("replay"), quiet=True)
    seen, replayed = (found.model().state_dict() for found in (open_one(out), again))
    same = all(torch.equal(seen[name], replayed[name]) for name in seen)
    found = "the same model, to the bit" if same else "ANOTHER MODEL"
    say(f"the replay in one process ({out / 'replay.toml'}) gives {found}")
