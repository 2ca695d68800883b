"""A run can be killed at any moment: resumed, its records are those of a run that nobody disturbed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from same_rows import same
from turnout.cli import main
from turnout.running.result import open_run

Program = subprocess.Popen[str]
Start = Callable[..., Program]

SMALL = """
rounds = {rounds}
evaluate = {{every = 3}}
model = {model}
[world]
data = {{kind = "synthetic", clients = 12, sizes = {{kind = "pareto", cap = 40}}}}
participation = {{kind = "traces", first = 8}}
[algorithm]
local = {{epochs = 2, batch_size = 5}}
{algorithm}
"""
PERSONAL = 'personal = "batch-norm"\nselection = {kind = "count", clients = 5}'


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the real program, with checkpoints so often that a kill falls between two of them."""
    started: list[Program] = []

    def begin(*arguments: object) -> Program:
        command = [sys.executable, "-m", "turnout", "run", *map(str, arguments)]
        environment = os.environ | {"TURNOUT_CHECKPOINT_SECONDS": "0.1"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def experiment(folder: Path, rounds: int, model: str = '{kind = "logistic"}', algorithm: str = "") -> Path:
    path = folder / "small.toml"
    path.write_text(SMALL.format(rounds=rounds, model=model, algorithm=algorithm))
    return path


def rounds_in(records: Path) -> int:
    """Rounds recorded so far, read while the run writes; on a file system without locks, without them."""
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        try:
            db = sqlite3.connect(f"file:{records}?{mode}", uri=True, timeout=0)
        except sqlite3.Error:
            continue
        try:
            return int(db.execute("SELECT count(*) FROM rounds").fetchone()[0])
        except sqlite3.Error:
            continue
        finally:
            db.close()
    return 0


def wait_for(process: Program, records: Path, rounds: int) -> None:
    while rounds_in(records) < rounds:
        if process.poll() is not None:
            raise AssertionError(f"ended too soon: {process.communicate()[1]}")
        time.sleep(0.005)


def kill_after(process: Program, records: Path, rounds: int) -> int:
    """Kill without warning once so many rounds are recorded; how many there were."""
    wait_for(process, records, rounds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return rounds_in(records)


def run_here(*arguments: object) -> None:
    """The same program in this process, undisturbed."""
    assert main(["run", *map(str, arguments), "--quiet"]) == 0


def test_killed_twice_and_resumed_is_the_same(tmp_path: Path, start: Start) -> None:
    file, run, records = experiment(tmp_path, 200), tmp_path / "killed", tmp_path / "killed" / "records.sqlite"
    first = kill_after(start(file, "--out", run), records, 10)
    second = kill_after(start(file, "--out", run, "--resume"), records, first + 10)
    assert 10 <= first < second < 200
    run_here(file, "--out", run, "--resume")
    run_here(file, "--out", tmp_path / "whole")
    assert same(tmp_path / "whole" / "records.sqlite", records) == []
    assert (tmp_path / "whole" / "turnout.csv").read_bytes() == (run / "turnout.csv").read_bytes()


def test_what_clients_keep_survives_a_kill(tmp_path: Path, start: Start) -> None:
    file = experiment(tmp_path, 50, '{kind = "mlp", hidden = [8], batch_norm = true}', PERSONAL)
    run, whole = tmp_path / "killed", tmp_path / "whole"
    assert kill_after(start(file, "--out", run), run / "records.sqlite", 10) < 50
    run_here(file, "--out", run, "--resume")
    run_here(file, "--out", whole)
    assert same(whole / "records.sqlite", run / "records.sqlite") == []
    for client in (0, 7):
        ours, theirs = (open_run(folder).model(client=client).state_dict() for folder in (run, whole))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_runs_side_by_side_end_with_their_parent_and_go_on_from_the_folder_alone(tmp_path: Path, start: Start) -> None:
    file = experiment(tmp_path, 100)
    grid = ["--grid", "algorithm.weighting=A,C", "--seeds", 1]
    out, names = tmp_path / "killed", [f"weighting={scheme}/seed-0/records.sqlite" for scheme in "AC"]
    process = start(file, *grid, "--jobs", 2, "--out", out)
    wait_for(process, out / names[1], 1)
    kill_after(process, out / names[0], 5)
    run_here("--out", out, "--resume", "--jobs", 1)
    run_here(file, *grid, "--jobs", 1, "--set", "runtime.threads=1", "--out", tmp_path / "whole")
    for name in names:
        assert same(tmp_path / "whole" / name, out / name) == []


@pytest.mark.parametrize("outbox", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_ends_its_children_and_says_how_to_go_on(
    tmp_path: Path, start: Start, outbox: signal.Signals
) -> None:
    file, out = experiment(tmp_path, 1_000_000), tmp_path / "run"
    process = start(file, "--grid", "algorithm.weighting=A,C", "--seeds", 1, "--jobs", 2, "--out", out)
    records = [out / f"weighting={scheme}" / "seed-0" / "records.sqlite" for scheme in "AC"]
    for path in records:
        wait_for(process, path, 2)
    process.send_signal(outbox)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert (out / "report.html").exists()
    assert f"turnout run --out {out} --resume" in err
    assert "Traceback" not in err
    before = [rounds_in(path) for path in records]
    time.sleep(0.3)
    assert [rounds_in(path) for path in records] == before


def test_a_complete_run_just_shows_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = experiment(tmp_path, 3), tmp_path / "run"
    run_here(file, "--out", out)
    written = (out / "checkpoint.safetensors").stat().st_mtime_ns
    shown = capsys.readouterr().out
    run_here(file, "--out", out, "--resume")
    assert capsys.readouterr().out == shown
    assert "accuracy" in shown
    assert (out / "checkpoint.safetensors").stat().st_mtime_ns == written


def test_a_lengthened_run_goes_on_from_its_folder_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = experiment(tmp_path, 2), tmp_path / "run"
    run_here(file, "--out", out)
    assert main(["run", str(file), "--set", "rounds=3", "--out", str(out), "--resume", "--quiet"]) == 0
    settings = out / "experiment.toml"
    assert "rounds = 3" in settings.read_text()
    changed = settings.read_text().replace("rounds = 3", "rounds = 4")  # as if interrupted on the way there
    settings.write_text(changed.rpartition("# checksum")[0])
    run_here("--out", out, "--resume")
    assert rounds_in(out / "records.sqlite") == 4
    capsys.readouterr()
    assert main(["run", str(file), "--out", str(out), "--resume"]) == 0  # of 2 rounds, which it has had long ago
    err = capsys.readouterr().err
    assert "resumed after" not in err
    assert "all of its 4 rounds" in err


def test_what_cannot_be_gone_on_with_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = experiment(tmp_path, 2), tmp_path / "run"

    def refused(*arguments: object) -> str:
        assert main(["run", *map(str, arguments), "--resume", "--quiet"]) == 2
        return capsys.readouterr().err

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert "holds no run" in refused(file, "--out", tmp_path / "other")
    assert "recipe or file" in refused("--out", tmp_path / "other")
    run_here(file, "--out", out)
    for path in out.glob("records.sqlite*"):
        path.unlink()
    assert "lacks rounds that" in refused(file, "--set", "rounds=3", "--out", out)
    grid = ("--grid", "algorithm.weighting=A,C", "--out", tmp_path / "grid")
    run_here(file, *grid, "--seeds", 2, "--jobs", 1)
    assert "also holds weighting=A seed 1, weighting=C seed 1" in refused(file, *grid, "--seeds", 1)
    assert "also holds weighting=A" in refused(file, "--grid", "algorithm.weighting=B,C", *grid[2:], "--seeds", 2)
    run_here(file, *grid, "--seeds", 3, "--jobs", 1, "--resume")


def test_more_rounds_go_on_where_fewer_ended(tmp_path: Path) -> None:
    run_here(experiment(tmp_path, 5), "--out", tmp_path / "run")
    run_here(experiment(tmp_path, 10), "--out", tmp_path / "run", "--resume")
    run_here(experiment(tmp_path, 10), "--out", tmp_path / "whole")
    with open_run(tmp_path / "run").records() as records:
        assert records.last_round() == 9
    # The last round is always evaluated: the run of five rounds has one evaluation more, after its fifth.
    extra = same(tmp_path / "whole" / "records.sqlite", tmp_path / "run" / "records.sqlite")
    assert extra
    assert all(line.startswith("evaluations round 4,") for line in extra)


def test_resume_starts_a_run_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run_here(experiment(tmp_path, 2), "--out", tmp_path / "run", "--resume")
    assert rounds_in(tmp_path / "run" / "records.sqlite") == 2


def test_a_run_keeps_the_threads_it_began_with(tmp_path: Path) -> None:
    file, out = experiment(tmp_path, 2), tmp_path / "run"
    run_here(file, "--set", "runtime.threads=3", "--set", "runtime.device=cpu", "--out", out)
    run_here(file, "--set", "rounds=4", "--set", "runtime.device=cpu", "--out", out, "--resume")
    assert '"threads": 3' in (out / "environment.json").read_text()
    assert rounds_in(out / "records.sqlite") == 4


def test_two_processes_in_one_folder_are_refused(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.running.folder.LOCK_SECONDS", 0.2)
    file, out = experiment(tmp_path, 1_000_000), tmp_path / "run"
    process = start(file, "--out", out)
    wait_for(process, out / "records.sqlite", 2)
    assert main(["run", str(file), "--out", str(out), "--resume"]) == 2
    assert f"another process is running in {out}" in capsys.readouterr().err
    assert process.poll() is None
