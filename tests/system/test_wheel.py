"""The distributions, and the wheel in an environment that has nothing else: no compiler, and no extras."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


def done(*command: str | Path, folder: Path, **variables: str) -> str:
    """A command's output; without this checkout on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    ended = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` builds."""
    made = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--outdir", made, ROOT, folder=made, TURNOUT_KERNELS="1")
    done(sys.executable, "-m", "build", "--outdir", made, ROOT / "papers", folder=made)
    return made


@pytest.mark.slow
def test_distributions_are_complete(dist: Path):
    done(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), folder=dist)
    assert len([*dist.glob("turnout-*.tar.gz"), *dist.glob("turnout_papers-*.tar.gz")]) == 2
    assert len([*dist.glob("turnout_papers-*-py3-none-any.whl")]) == 1
    (wheel,) = dist.glob("turnout-*-py3-none-linux_*.whl")  # for one platform, and every Python
    files = ZipFile(wheel).namelist()
    assert "turnout/machine/kernels.so" in files
    assert {"turnout/engine/kernels/c/local_steps.c", "turnout/engine/kernels/c/share_out.h"} <= set(files)


@pytest.mark.slow
def test_the_wheel_alone_runs_the_demonstration(dist: Path, tmp_path: Path):
    (wheel,) = dist.glob("turnout-*.whl")
    done(sys.executable, "-m", "venv", "bare", folder=tmp_path)
    pip = tmp_path / "bare" / "bin" / "pip"
    torch = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch
    done(pip, "install", "--quiet", torch[0], folder=tmp_path)  # pinned: another may bring gigabytes
    done(pip, "install", "--quiet", wheel, folder=tmp_path)  # the newest versions of the rest, as a user gets them
    installed = {row["name"].lower() for row in json.loads(done(pip, "list", "--format=json", folder=tmp_path))}
    assert not installed & {"ray", "flwr", "pandas", "mypy", "pytest", "pillow", "starlette", "turnout-papers"}

    turnout, bare = tmp_path / "bare" / "bin" / "turnout", {"PATH": "", "CC": "none", "HOME": str(tmp_path)}
    done(turnout, "run", "--out", "demo", "--quiet", folder=tmp_path, **bare)
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "demo" / "curves.svg").stat().st_size > 1_000
    assert "FedAvg" in done(turnout, "show", "demo", folder=tmp_path, **bare)
    environments = [json.loads(path.read_text()) for path in tmp_path.glob("demo/FedAvg/*/environment.json")]
    assert [about["engine"] for about in environments] == ["native"] * 3
    assert not (tmp_path / ".cache" / "turnout" / "kernels").exists()
