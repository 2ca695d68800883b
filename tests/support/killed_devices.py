"""Devices of a deployment as processes that are killed (SIGKILL) at a stage of a secure sum, and come back.

    python killed_devices.py PLAN.json

The plan has {device file: [round, stage, whether before the answer is computed]}. One process loads the library and
forks a process for each device, with the whole device code and a connection of its own; when one dies, it is forked
again. Loading is the same for all of them and takes seconds of a processor: 20 devices, all killed once, would load 40
times. `died.log` beside the plan has a line for each process that ended: its device, and the signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from turnout.deploy import apps
from turnout.deploy.answering import ClientDevice, head_of
from turnout.deploy.device import open_device, read_device
from turnout.deploy.shortcuts import stay
from turnout.runtimes import wire
from turnout.runtimes.remote import OWN, Parts

assert apps, "loaded before the first fork"
AGAIN = 0.5  # seconds until a device that died is started again


def dies_at(device: ClientDevice, t: int, stage: str, before: bool, mark: Path) -> None:
    """Make a device kill its process when it is asked for a stage of a round, before or after it has an answer."""
    answer, now = device.answer, -1

    def answered(parts: Parts) -> Parts:
        nonlocal now
        what = head_of(parts)["what"]
        if what == "keys":
            now = int(wire.unpack(parts[OWN])["t"])
        dies = (now, what) == (t, stage) and not mark.exists()
        if dies:
            mark.touch()
        if not (dies and before):
            found = answer(parts)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    device.answer = answered  # type: ignore[method-assign]


def live(path: Path, t: int, stage: str, before: bool) -> None:
    device = open_device(path)
    dies_at(device, t, stage, before, path.with_suffix(".died"))
    stay(device, read_device(path))


def main(file: Path) -> None:
    plan, alive = json.loads(file.read_text()), dict[int, str]()
    log = open(file.with_name("died.log"), "w", buffering=1)  # noqa: SIM115
    while True:
        for path in sorted(plan.keys() - set(alive.values())):
            child = os.fork()
            if child == 0:
                try:
                    live(Path(path), *plan[path])
                finally:
                    os._exit(1)
            alive[child] = path
        child, status = os.wait()
        print(alive.pop(child), os.WTERMSIG(status), file=log)
        time.sleep(AGAIN)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
