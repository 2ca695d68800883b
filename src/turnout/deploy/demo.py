"""`turnout deploy demo`: a server and five devices on this machine, and everything that goes wrong with real ones.

Device 0 works. Device 1 declines now and then. Device 2 is killed and restarted. Device 3 is slow: it does what it can
until the deadline. Device 4 joins late, and device 0 leaves before the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch

from turnout.data import Digits
from turnout.deploy.app import server_project
from turnout.deploy.device import ask_to_leave
from turnout.deploy.processes import LOOK, Process, Say, ServerPlace, Serving, device_process, free_port
from turnout.deploy.settings import Flower
from turnout.experiment import Algorithm, Experiment, World
from turnout.machine.files import write_whole
from turnout.models import MLP
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.weighting import ByWork
from turnout.running.config.read import load, to_toml
from turnout.running.records.records import Records
from turnout.running.result import Run, open_one
from turnout.running.runs import run

DEVICES = 5
SLOW, MOODY, LATE = 3, 1, 4
HOW = (
    "its own SuperLink and SuperNodes, a process for every message (--shortcuts: a few times as fast)",
    "shortcuts through the inside of its package, SuperNode and ClientApp in one process",
)
SECONDS = ((60.0, 30.0), (12.0, 6.0))  # of a round and of a question, without and with the shortcuts


def demo_experiment(rounds: int, shortcuts: bool = True) -> Experiment:
    """Scheme C on digits; a round closes after a few seconds, whatever the slow device has done by then."""
    round_seconds, request_seconds = SECONDS[shortcuts]
    return Experiment(
        world=World(Digits(clients=DEVICES)),
        model=MLP(32),
        algorithm=Algorithm(Local(SGD(lr=0.1), epochs=2, batch_size=10), weighting=ByWork()),
        rounds=rounds,
        runtime=Flower(
            clients=DEVICES,
            start_with=DEVICES - 1,
            server_data=True,
            round_seconds=round_seconds,
            request_seconds=request_seconds,
        ),
        title="demo",
    )


def moody() -> bool:
    """Whether the moody device works: in two of three periods of five seconds."""
    return int(time.time() / 5) % 3 != 0


def write_server(folder: Path, experiment: Experiment, host: str, port: int, shortcuts: bool) -> Serving:
    """Write the files of a server on this machine."""
    file, out = folder / "experiment.toml", folder / "run"
    (folder / "app").mkdir(parents=True, exist_ok=True)
    write_whole(file, to_toml(experiment))
    write_whole(folder / "app" / "pyproject.toml", server_project(file, out))
    return Serving(ServerPlace(folder / "app", folder / "server", host, port, shortcuts=shortcuts), file, out)


def play(folder: Path, rounds: int, shortcuts: bool, say: Say) -> None:
    """Run the demonstration, then its replay in one process."""
    port, devices = free_port(), dict[int, Process]()
    say(f"Flower {version('flwr')}: {HOW[shortcuts]}")
    serving = write_server(folder, demo_experiment(rounds, shortcuts), "127.0.0.1", port, shortcuts)
    serving.say = say
    files = [folder / f"device-{i}.toml" for i in range(DEVICES)]
    for i, file in enumerate(files):
        slow = f"slowness = {0.36 * SECONDS[shortcuts][0]}\n" if i == SLOW else ""
        rule = '[policy]\nown = "turnout.deploy.demo:moody"\n' if i == MOODY else ""
        text = f'experiment = "experiment.toml"\nclient = "{i}"\nsuperlink = "127.0.0.1:{port}"\nfolder = "disk-{i}"\n'
        write_whole(file, text + slow + rule)

    def start(i: int) -> None:
        process = device_process([files[i]], files[i].with_suffix(".log"), shortcuts)
        process.command = [*process.command, "--allow", "turnout"]  # for the rule of the device MOODY
        devices[i] = process.start()

    acts: list[tuple[float, str, Callable[[], object]]] = [
        (0.15, "device 2 is killed", lambda: devices[2].kill()),
        (0.35, "device 2 is restarted", lambda: start(2)),
        (0.4, f"device {LATE} is started for the first time", lambda: start(LATE)),
        (0.55, "the server's process is killed", serving.end_run),
        (0.75, "device 0 asks to leave", lambda: ask_to_leave(files[0])),
    ]
    try:
        serving.start()
        for i in range(DEVICES):
            if i != LATE:
                start(i)
        while not serving.watch():
            if acts and serving.rounds_done() >= max(1, round(rounds * acts[0][0])):
                _, words, act = acts.pop(0)
                say(f"  {words}")
                act()
            time.sleep(LOOK)
    finally:
        for process in devices.values():
            process.kill()
        serving.stop()
    show(folder / "run", say)
    compare(folder / "run", say)


def show(out: Path, say: Say) -> None:
    """Print what happened, round by round and device by device."""
    with Records.read(out / "records.sqlite") as records:
        clients, last = records.clients(), records.last_round() or 0
        work = dict(zip(zip(clients["client"].tolist(), clients["round"].tolist(), strict=True),
                        clients["work"].tolist(), strict=True))  # fmt: skip
        accuracy = records.curve("global_accuracy")[1]
    say("\nwork of each device, in tenths (* all of it, . asked and absent)")
    for i in range(DEVICES):
        parts = [work.get((i, t)) for t in range(last + 1)]
        marks = [" " if w is None else "." if w == 0 else "*" if w >= 1 else str(int(10 * w)) for w in parts]
        say(f"  device {i}  " + " ".join(marks))
    say(f"global_accuracy {accuracy[0]:.3f} -> {accuracy[-1]:.3f}; the report is {out / 'report.html'}")


def compare(out: Path, say: Say) -> None:
    """Replay in one process what was observed: the model must be the same."""
    same = same_model(out, run(load(out / "replay.toml"), out.with_name("replay"), quiet=True))
    found = "the same model, to the bit" if same else "ANOTHER MODEL"
    say(f"the replay in one process ({out / 'replay.toml'}) gives {found}")


def same_model(out: Path, again: Run) -> bool:
    """Whether the run in a folder and its replay have the same model, to the bit."""
    observed, replayed = (found.model().state_dict() for found in (open_one(out), again))
    return all(torch.equal(observed[name], replayed[name]) for name in observed)
