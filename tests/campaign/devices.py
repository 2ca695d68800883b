"""A real deployment on this machine while everything goes wrong: SuperLink, server, devices with keys over TLS.

    python tests/campaign/devices.py SEED         once through, what was tried and what went wrong as JSON

Devices 0 and 1 are killed and frozen. Device 2 is behind a network that goes silent: a namespace of its own whose link
is taken down, where there are the rights for it. Device 3 is behind a proxy that breaks connections and slows them.
Device 4 sends garbage, too much, no numbers, another's name and what it has announced not at all, round by round;
device 5 an introduction that was signed for another server; a stranger has a key that nobody knows. Meanwhile the
server's process and the SuperLink are killed. Training must go on to its end, each bad message must be on record, and
the replay of what was seen must have the same model, to the bit. On a machine that is busy with other things
everything is given more time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
from faults import Counts
from flwr.supercore.inflatable import inflatable_utils
from networks import Namespace, Proxy, namespace

from deployments import Deployment, deployed
from spoilt import Spoilt
from turnout.deploy.answering import head_of
from turnout.deploy.demo import compare
from turnout.deploy.device import open_device, read_device
from turnout.deploy.processes import Process
from turnout.deploy.shortcuts import stay
from turnout.errors import UserError
from turnout.running.records.records import Records
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD

NEVER_SENT = "a reply that was announced and never comes"
ROUNDS, LAST_ACT = 40, 10  # after round 10 the last fault comes; who was cut off has the rest to come back
SPOILT = ("nan", "cut", "large", "client", NEVER_SENT)  # what device 4 sends, one after another
RECORDED = {
    "a device that sends garbage": "cannot be read", "a device that sends too much": "most_bytes",
    "a device that sends no numbers": "not finite", "a device that speaks for another": "another client",
    "an old introduction": "signature",
}  # fmt: skip
SLOW = 0.3  # seconds that each piece takes on the slowed way
START = 6.0  # seconds that a device's program takes to start on a machine that is not slow


def slowness() -> float:
    """How many times as long as usual things take here now, at least 1."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import turnout.deploy.device, turnout.deploy.apps"], check=True)
    return max(1.0, (time.monotonic() - began) / START)


class Rotating(Spoilt):
    """Spoils its replies in one way after another; `sends`: whether what it announces is sent."""

    sends = True

    def answer(self, parts: dict[str, bytes]) -> dict[str, bytes]:
        said = super().answer(parts)
        self.sends = True
        if head_of(parts)["what"] == "work":
            self.sends = self.kind != NEVER_SENT
            self.kind = SPOILT[(SPOILT.index(self.kind) + 1) % len(SPOILT)]
        return said


class Old:
    """Introduces itself with what was signed for another server."""

    def __init__(self, device: Any):
        self.device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def answer(self, parts: dict[str, bytes]) -> dict[str, bytes]:
        head = head_of(parts)
        if head["what"] != "hello":
            return dict(self.device.answer(parts))
        return dict(self.device.answer({HEAD: wire.pack(head | {"challenge": "of another server"})}))


def be_bad(files: list[Path]) -> None:
    """Be devices 4 and 5."""
    devices = [Rotating(open_device(files[0]), SPOILT[0]), Old(open_device(files[1]))]
    push = inflatable_utils.push_objects

    def pushed(*given: Any, **more: Any) -> None:
        if devices[0].sends:
            push(*given, **more)
        else:
            print(NEVER_SENT, flush=True)

    inflatable_utils.push_objects = pushed
    said = [read_device(path) for path in files]
    threads = [threading.Thread(target=stay, args=own) for own in zip(devices, said, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def acts(play: Play) -> list[tuple[str, Callable[[], object]]]:
    """What happens, one after each round."""
    serving, silent, broken = play.deployment.serving, play.silent, play.broken

    def slowed() -> None:
        broken.mend()
        broken.slow = SLOW

    def superlink_dies() -> None:
        assert serving.superlink is not None
        serving.superlink.kill()

    return [
        ("a device killed", play.devices["1"].kill),
        ("a device frozen", lambda: play.signal("0", signal.SIGSTOP)),
        ("", lambda: (play.start("1"), play.signal("0", signal.SIGCONT))),
        ("a network that goes silent", silent.cut),
        ("a network whose connections break", broken.cut),
        ("", silent.mend),
        ("a slow network", slowed),
        ("the server's process killed", serving.end_run),
        ("", lambda: setattr(broken, "slow", 0.0)),
        ("the SuperLink killed", superlink_dies),
    ]


class Play:
    """A deployment, its ways and its devices."""

    def __init__(self, folder: Path):
        own, self.slowness = namespace(), slowness()
        self.deployment = Deployment(
            folder, tls=True, rounds=ROUNDS, host=own.host if own else None, clients=6, start_with=5,
            round_seconds=10.0 * self.slowness, request_seconds=5.0 * self.slowness, most_bytes=2_000_000,
        )  # fmt: skip
        port = self.deployment.place.port
        if own is not None:
            own.port = port
        self.silent: Namespace | Proxy = own or Proxy(port, silent=True)
        self.broken = Proxy(port, silent=False)
        self.devices: dict[str, Process] = {}
        self.deployment.let_in(*"012345")
        self.deployment.certify("device", "stranger")

    def start(self, name: str, key: str | None = None) -> None:
        way = {"2": self.silent, "3": self.broken}.get(name)
        path = self.deployment.device(name, key or name, way.address if way else None)
        command = [sys.executable, "-m", "turnout", "device", "run", str(path), "--shortcuts"]
        self.devices[key or name] = self.deployment.start(path, [*(way.prefix if way else []), *command])

    def start_all(self) -> None:
        for name in "0123":
            self.start(name)
        files = [self.deployment.device(name, name) for name in "45"]
        self.devices["bad"] = self.deployment.start(files[0], [sys.executable, __file__, "--bad", *map(str, files)])
        self.start("0", "stranger")

    def signal(self, name: str, number: int) -> None:
        popen = self.devices[name].popen
        assert popen is not None
        os.killpg(popen.pid, number)

    def close(self) -> None:
        self.silent.close()
        self.broken.close()


def campaign(counts: Counts, seed: int, times: int) -> None:
    """So many times through everything."""
    for number in range(times):
        if not counts.over:
            with tempfile.TemporaryDirectory(prefix="campaign-") as home:
                once(counts, seed + number, Path(home) / "app")


def once(counts: Counts, seed: int, folder: Path) -> None:
    """Once through everything; what is wrong with the whole is wrong with each of its faults."""
    play, draw, tried = Play(folder), random.Random(seed), list[str]()
    try:
        with deployed(play.deployment) as deployment:
            play.start_all()
            for done, (name, act) in enumerate(acts(play), 1):
                deployment.until(done, 150.0 * play.slowness)
                time.sleep(draw.random())
                act()
                tried += [name] if name else []
            deployment.until(ROUNDS + 1, 300.0 * play.slowness)
        wrong = after(folder / "run")
    except (AssertionError, UserError) as error:
        wrong = f"the run does not go on: {str(error)[-600:]}"
    finally:
        play.close()
    for name in tried:
        counts.add(name, wrong)
    said = refused(folder / "run")
    for name, words in RECORDED.items():
        counts.add(name, None if words in said else f"it is not on record: {said[-600:]}")
    bad = "".join(log.read_text() for log in folder.glob("device-4.*.log"))
    counts.add(NEVER_SENT, wrong if NEVER_SENT in bad else f"none was announced: {bad[-400:]}")
    stranger = "".join(log.read_text() for log in folder.glob("device-stranger.*.log"))
    counts.add("a stranger's key", None if "Failed to activate SuperNode" in stranger else f"let in: {stranger[-400:]}")


def refused(out: Path) -> str:
    """What the records say of bad messages."""
    if not (out / "records.sqlite").exists():
        return "no records"
    with Records.read(out / "records.sqlite") as records:
        return " ".join(str(words) for words in records.rounds().get("refused", np.array([])).tolist())


def after(out: Path) -> str | None:
    """What is wrong with a run: not every round, a device that never came back, or another model in the replay."""
    with Records.read(out / "records.sqlite") as records:
        records.check()
        columns, last = records.clients(), records.last_round()
    if last != ROUNDS - 1:
        return f"the last round is {last}"
    rows = zip(*(columns[name].tolist() for name in ("client", "round", "work")), strict=True)
    worked = {(client, t) for client, t, work in rows if work > 0}
    for client in range(4):
        if not any((client, t) in worked for t in range(LAST_ACT, ROUNDS)):
            return f"device {client} has not come back"
    if any(client in (4, 5) for client, _ in worked):
        return f"something bad was used: {sorted(worked)}"
    said = list[str]()
    compare(out, said.append)
    return None if "the same model, to the bit" in said[-1] else said[-1]


if __name__ == "__main__":
    if sys.argv[1] == "--bad":
        be_bad([Path(word) for word in sys.argv[2:]])
    else:
        found = Counts()
        campaign(found, int(sys.argv[1]), 1)
        print(json.dumps({"tried": found.tried, "wrong": found.wrong}, indent=2))
        sys.exit(1 if found.wrong else 0)
