"""Measuring this machine's own trace: shares, a log that can be used, and nothing left running."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from turnout.errors import UserError
from turnout.fleet.fleet_participation import FleetLog
from turnout.world import contention
from turnout.world.recording import Row, TrainingJob, calibrate, competitor, record_log, record_trace


def test_a_recorded_log_is_a_fleet_log(tmp_path: Path) -> None:
    path, seen = tmp_path / "trace.csv", list[tuple[int, int, Row]]()
    rows = record_log(
        path,
        rounds=3,
        epochs=4,
        loads=(0.0, 0.5),
        epoch_seconds=0.002,
        progress=lambda *args: seen.append(args),
    )
    assert [row[:2] for row in rows] == [(t, name) for name in ("load-0", "load-50") for t in range(3)]
    assert all(share in {0, 0.25, 0.5, 0.75, 1} for _, _, share in rows)
    assert [(done, total) for done, total, _ in seen] == [(i + 1, 6) for i in range(6)]
    log = FleetLog(str(path), mode="blocks", of="client")
    assert log.log.names == ("load-0", "load-50")
    assert sorted(log.log.rows()) == sorted(rows)
    assert set(log.fraction(torch.arange(50), 0, 4, seed=0).tolist()) <= set(log.log.work_N.tolist())


def test_the_deadline_decides() -> None:
    assert record_trace(2, TrainingJob(epochs=3, samples=2, deadline_seconds=60)) == [
        (0, "load-0", 1.0),
        (1, "load-0", 1.0),
    ]
    assert record_trace(1, TrainingJob(epochs=3, samples=10**9, deadline_seconds=0.01)) == [(0, "load-0", 0.0)]
    begin = time.perf_counter()
    (row,) = record_trace(1, TrainingJob(epochs=10**6, samples=1, deadline_seconds=0.2), load=0.3)
    assert 0 < row[2] < 1
    assert 0.2 < time.perf_counter() - begin < 5


def test_calibration_leaves_time_for_a_full_round() -> None:
    trial = calibrate(epochs=3, epoch_seconds=0.005, slack=1.1)
    assert trial.epochs == 3
    assert trial.samples >= 1
    assert 0.001 < trial.deadline_seconds < 2


def test_the_competitor_works_its_share_and_is_gone_afterwards() -> None:

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with competitor(0.3) as running:
        assert len(running) == 1
        assert all(process.poll() is None for process in running)
        time.sleep(0.5)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert 0.01 < used < 0.4
    assert all(process.returncode is not None for process in running)


def test_the_competitor_is_gone_after_an_error_too() -> None:
    with pytest.raises(KeyboardInterrupt), competitor(0.9) as running:
        raise KeyboardInterrupt
    assert all(process.returncode is not None for process in running)


def test_a_process_is_kept_on_its_core_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[int, set[int]]]()
    monkeypatch.setattr(os, "sched_setaffinity", lambda *call: calls.append(call), raising=False)
    contention.pin(-1)
    assert calls == []
    contention.pin(3)
    assert calls == [(0, {3})]
    monkeypatch.delattr(os, "sched_setaffinity")
    contention.pin(3)  # a system that cannot


def test_no_load_needs_no_competitor() -> None:
    with competitor(0.0) as running:
        assert running == []


@pytest.mark.parametrize("what", [["compete", "0.5", "0.02"], ["train", "1000000", "5", "100000", "1"]])
def test_a_process_without_its_parent_ends_by_itself(what: list[str]) -> None:
    kind, *numbers = what
    someone_else = str(os.getppid())
    command = [sys.executable, "-I", "-S", contention.__file__, kind, someone_else, "-1", "0", *numbers]
    assert subprocess.run(command, timeout=20, check=True, capture_output=True).stdout == b""


def test_a_process_leaves_an_interruption_to_its_parent() -> None:
    """Ctrl-C reaches all processes of a terminal: no traceback of theirs, and the parent ends them."""
    numbers = ["train", str(os.getpid()), "-1", "0", "100", "1000000", "1", "0.02"]
    command = [sys.executable, "-I", "-S", contention.__file__, *numbers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        later = [process.stdout.readline() for _ in range(4)]
        process.kill()
        assert all(later)
        assert process.communicate()[1] == ""


def test_the_training_job_learns() -> None:
    """SGD on one sample drives its logistic loss towards 0, so the work that is timed is real."""
    weights, x = [0.0, 0.0], [1.0, -2.0]
    for _ in range(1000):
        contention.step(weights, x, label=1, lr=0.1)
    assert 1 / (1 + math.exp(-(weights[0] - 2 * weights[1]))) > 0.99


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rounds": 0}, "1 or more"),
        ({"epochs": 0}, "1 or more"),
        ({"loads": (0.0, 1.0)}, "a load of 1.0"),
        ({"loads": (-0.1,)}, "a load of -0.1"),
        ({"loads": (0.3, 0.301)}, "must differ"),
        ({"deadline_seconds": 0.0}, "a deadline of 0.0"),
        ({"deadline_seconds": -1.0}, "a deadline of -1.0"),
        ({"deadline_seconds": math.nan}, "a deadline of nan"),
        ({"deadline_seconds": math.inf}, "a deadline of inf"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, settings: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=says):
        record_log(tmp_path / "trace.csv", **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "trace.csv").exists()
