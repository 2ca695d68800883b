"""The same command with --resume goes on, whatever was there when it was killed; and two commands do not mix."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from commands import turnout, work_in
from same_rows import same
from turnout.cli.planning import make_plan
from turnout.running.plan import write_plan

Capture = pytest.CaptureFixture[str]
DEMO = ["--seeds", "1", "--jobs", "1", "--set", "rounds=1", "--set", "world.data.clients=10", "-q"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_in(tmp_path, monkeypatch)


def run(*arguments: object) -> int:
    return turnout("run", *arguments)


def test_the_same_command_goes_on(capsys: Capture) -> None:
    assert run("--out", "out", *DEMO) == 0
    (Path("out") / "friends" / "seed-0" / "checkpoint.safetensors").unlink()
    assert run("--out", "out", *DEMO, "--resume") == 0
    assert run("--out", "other", *DEMO, "--resume") == 0
    for variant in ("FedAvg", "stale", "friends"):
        assert same(*(f"{out}/{variant}/seed-0/records.sqlite" for out in ("out", "other"))) == []
    grid = ["small.toml", "--grid", "algorithm.weighting=A,C", "--seeds", "1", "--out", "grid", "--jobs", "1", "-q"]
    assert run(*grid) == 0
    assert run(*grid, "--resume") == 0
    assert run("--out", "grid", "--seeds", "1", "--resume", "-q") == 2  # of another recipe, the default one
    assert "recipe or file" in capsys.readouterr().err


@pytest.mark.parametrize("written", [0, 2])
def test_a_half_made_folder_is_gone_on_with(written: int, capsys: Capture) -> None:
    """Killed while the folder was made: so many of its experiments are there, and not yet what names them."""
    settings = ["rounds=1", "world.data.clients=10"]
    write_plan(make_plan(None, settings, [], 1, Path("out"), False))
    Path("out/runs.json").unlink()
    kept = sorted(Path("out").glob("*/seed-0/experiment.toml"))
    for path in kept[written:]:
        path.rename(path.with_name("experiment.toml.new"))
    assert run("--out", "out", *DEMO, "--resume") == 0
    entries = json.loads(Path("out/runs.json").read_text())["runs"]
    assert [entry["variant"] for entry in entries] == [
        "all present",
        "FedAvg",
        "FedProx",
        "SCAFFOLD",
        "stale",
        "friends",
    ]


def test_what_names_the_runs_is_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    written, real = list[str](), os.replace

    def replace(source: Path, target: Path) -> None:
        written.append(target.name)
        real(source, target)

    monkeypatch.setattr("os.replace", replace)
    write_plan(make_plan(None, [], [], 1, Path("out"), False))
    assert written == ["experiment.toml"] * 6 + ["runs.json"]


def test_another_commands_half_made_folder_is_left_alone(capsys: Capture) -> None:
    write_plan(make_plan("small.toml", [], ["algorithm.weighting=A,C"], 1, Path("out"), False))
    Path("out/runs.json").unlink()
    before = sorted(Path("out").rglob("*"))
    assert run("--out", "out", "--resume", "-q") == 2
    assert "recipe or file" in capsys.readouterr().err
    assert run("digits", "--seeds", 2, "--out", "out", "--resume", "-q") == 2
    assert [path for path in sorted(Path("out").rglob("*")) if path.name != ".lock"] == before


def test_going_on_with_nothing_does_not_run_the_demo(capsys: Capture) -> None:
    assert run("--out", "nowhere", "--resume") == 2
    assert "there is no folder nowhere" in capsys.readouterr().err
    assert not Path("nowhere").exists()
