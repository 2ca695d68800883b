"""Several runs side by side, as a person starts them: parent, workers or all of them are killed at a random moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults import EXPERIMENT, Counts, same

RUNS = [f"weighting={scheme}/seed-0" for scheme in ("A", "C")]
PATIENCE = 900.0  # seconds for a run that takes a few, on a machine that is busy with other things
DEAD = 60.0  # seconds within which who was killed is gone: the kernel ends them when it comes to them


def command(home: Path, out: Path, *more: str) -> list[str]:
    grid = ["--grid", "algorithm.weighting=A,C", "--seeds", "1", "--jobs", "2", "--set", "rounds=30"]
    return [sys.executable, "-m", "turnout", "run", str(home / "e.toml"), *grid, "--out", str(out), "-q", *more]


def started(words: list[str], home: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"TURNOUT_CHECKPOINT_SECONDS": "0", "OMP_NUM_THREADS": "1"}
    environment.pop("LD_PRELOAD", None)
    return subprocess.Popen(
        words, cwd=home, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def members(group: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = path.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(session) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def whole_and_home() -> Path:
    """A folder with the experiment, and the runs of it that nobody disturbed."""
    home = Path(tempfile.mkdtemp(prefix="campaign-"))
    (home / "e.toml").write_text(EXPERIMENT)
    whole = started(command(home, home / "whole"), home)
    assert whole.wait(PATIENCE) == 0, whole.communicate()[1]
    return home


def killed_groups(counts: Counts, seed: int, kills: int) -> None:
    """Kill the parent alone, a worker, or everything; nothing of it lives on, and the same command goes on."""
    if not kills:
        return
    draw, home = random.Random(seed), whole_and_home()
    for number in range(kills):
        if counts.over:
            break
        out = home / f"run-{number}"
        whom = draw.choice(["the parent", "the parent", "a worker", "the group"])
        counts.add(f"kills of {whom}", _killed(draw, home, out, whom) or went_on(home, out))
        shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def _killed(draw: random.Random, home: Path, out: Path, whom: str) -> str | None:
    process = started(command(home, out), home)
    records, until = out / RUNS[0] / "records.sqlite", time.monotonic() + PATIENCE
    while draw.random() > 0.05 and not records.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(draw.random())
    living = members(process.pid)
    others = [one for one in living if one != process.pid]
    if whom == "the group":
        os.killpg(process.pid, signal.SIGKILL)
    elif whom == "a worker" and others:
        os.kill(draw.choice(others), signal.SIGKILL)
    else:
        process.kill()
    process.communicate(timeout=PATIENCE)
    until = time.monotonic() + DEAD
    while (left := members(process.pid)) and time.monotonic() < until:
        time.sleep(0.02)
    for one in left:
        os.kill(one, signal.SIGKILL)
    return f"{whom} was killed, and {len(left)} processes lived on" if left else None


def went_on(home: Path, out: Path) -> str | None:
    process = started(command(home, out, "--resume"), home)
    _, err = process.communicate(timeout=PATIENCE)
    if process.returncode or "Traceback" in err:
        return f"resume ended with {process.returncode}: {err[-500:]}"
    found = [d for run in RUNS for d in same(home / "whole" / run / "records.sqlite", out / run / "records.sqlite")]
    return f"records differ: {found[:2]}" if found else None
