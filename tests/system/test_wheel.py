"""The wheel, installed into an environment that has nothing else, runs the demonstration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def done(*command: str | Path, folder: Path) -> str:
    """A command's output; without this checkout on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


@pytest.mark.slow
def test_the_wheel_alone_runs_the_demonstration(tmp_path: Path):
    done(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, folder=tmp_path)
    (wheel,) = tmp_path.glob("turnout-*.whl")
    done(sys.executable, "-m", "venv", "bare", folder=tmp_path)
    pip, pins = tmp_path / "bare" / "bin" / "pip", ROOT / "constraints.txt"
    torch = re.search(r"^torch==\S+$", pins.read_text(), re.MULTILINE)
    assert torch
    done(pip, "install", "--quiet", torch[0], "-c", pins, folder=tmp_path)  # pinned: another may bring gigabytes
    done(pip, "install", "--quiet", wheel, "-c", pins, folder=tmp_path)
    turnout = tmp_path / "bare" / "bin" / "turnout"
    done(turnout, "run", "--out", "demo", "--quiet", folder=tmp_path)
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert "C" in done(turnout, "show", "demo", folder=tmp_path)
