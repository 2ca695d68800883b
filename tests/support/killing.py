"""A run in a process of its own, killed in the middle, resumed, and compared with one that nobody disturbed.

    python killing.py FILE FOLDER ROUNDS

runs an experiment that dies at any moment once so many rounds are kept in its folder, and in no case gets to its last
one: however busy the machine is, it does not decide whether there is a middle.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import turnout as to
from same_rows import same
from turnout.running.config.read import load, to_toml
from turnout.running.loop import FinishedRound
from turnout.running.records.checkpoint import rounds_done


def killed_and_resumed(experiment: to.Experiment, folder: Path, after: int) -> tuple[Path, Path]:
    """`kill -9` after so many rounds, `--resume`: every record is as in a whole run. The folders of both."""
    file, killed, whole = folder / "e.toml", folder / "killed", folder / "whole"
    file.write_text(to_toml(experiment))
    environment = os.environ | {"TURNOUT_CHECKPOINT_SECONDS": "0", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, __file__, str(file), str(killed), str(after)], env=environment)
    assert ended.returncode == -signal.SIGKILL
    assert after <= rounds_done(killed) < experiment.rounds, "it was not killed in the middle"
    to.run(experiment, killed, resume=True, quiet=True)
    to.run(experiment, whole, quiet=True)
    assert same(killed / "records.sqlite", whole / "records.sqlite") == []
    return killed, whole


def killed_after(file: Path, folder: Path, after: int) -> None:
    experiment, due = load(file), threading.Event()

    def hear(step: FinishedRound) -> None:
        if rounds_done(folder) >= after:
            due.set()
        if step.record.round == experiment.rounds - 2:
            threading.Event().wait()

    def kill() -> None:
        due.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    to.run(experiment, folder, on_round=hear, quiet=True)


if __name__ == "__main__":
    killed_after(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
