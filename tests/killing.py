"""A real run of the command line, killed in the middle, resumed, and compared with one that nobody disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import turnout as to
from turnout.config.read import to_toml
from turnout.records.checkpoint import rounds_done
from turnout.records.same import same


def killed_and_resumed(experiment: to.Experiment, folder: Path, after: int) -> tuple[Path, Path]:
    """`kill -9` after so many rounds, `--resume`: every record is as in a whole run. The folders of both."""
    file, killed, whole = folder / "e.toml", folder / "killed", folder / "whole"
    file.write_text(to_toml(experiment))
    command = [sys.executable, "-m", "turnout", "run", str(file), "--out", str(killed), "--quiet"]
    environment = os.environ | {"TURNOUT_CHECKPOINT_SECONDS": "0.01", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while rounds_done(killed) < after and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    assert after <= rounds_done(killed) < experiment.rounds, "it was not killed in the middle"
    to.run(experiment, killed, resume=True, quiet=True)
    to.run(experiment, whole, quiet=True)
    assert same(killed / "records.sqlite", whole / "records.sqlite") == []
    return killed, whole
