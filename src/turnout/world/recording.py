"""Measures a participation trace on this machine, as paper 000 did (§5.1).

A training process is asked for E epochs a round; its work is the share finished before a deadline, while a competitor
puts a load on the same core. Training then gets about 1 / (1 + load) of the core: 77, 67, 59 and 53 % for loads of 30,
50, 70 and 90 %. The paper's Raspberry Pis had 75, 67, 57 and 56 %.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import UserError
from turnout.world.log import write_turnout

Row = tuple[int, str, float]  # round, client, share of the work finished: a row of a log
Progress = Callable[[int, int, Row], None]  # rounds measured so far, rounds in all, the latest row

PAPER_LOADS = (0.0, 0.3, 0.5, 0.7, 0.9)
_SCRIPT = Path(__file__).with_name("contention.py")
_PERIOD_SECONDS = 0.02  # of the competitor: a few time slices of the system's scheduler


@dataclass(frozen=True)
class TrainingJob:
    """One round of the training process.

    epochs            passes over the samples
    samples           of each pass
    deadline_seconds  when the round ends, finished or not
    """

    epochs: int
    samples: int
    deadline_seconds: float


@contextmanager
def _process(what: str, seed: int, *numbers: float) -> Iterator[subprocess.Popen[str]]:
    """A process of contention.py on the last core (-1: any, if the system cannot pin it), killed at the block's end."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else -1
    command = [sys.executable, "-I", "-S", str(_SCRIPT), what, str(os.getpid()), str(core), str(seed)]
    process = subprocess.Popen(command + [str(n) for n in numbers], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def competitor(load: float, seed: int = 0) -> Iterator[list[subprocess.Popen[str]]]:
    """A process that puts `load` on the core of the training; no process for load 0."""
    if load == 0:
        yield []
        return
    with _process("compete", seed, load, _PERIOD_SECONDS) as process:
        yield [process]


def _train(job: TrainingJob, rounds: int, seed: int) -> Iterator[tuple[float, float]]:
    """The share finished and the seconds taken, for each round."""
    numbers = (rounds, job.epochs, job.samples, job.deadline_seconds)
    with _process("train", seed, *numbers) as process:
        assert process.stdout is not None
        for line in process.stdout:
            share, seconds = line.split()
            yield float(share), float(seconds)


def calibrate(epochs: int, epoch_seconds: float = 0.02, slack: float = 1.1, seed: int = 0) -> TrainingJob:
    """A job whose epochs take about `epoch_seconds` without load, with a deadline that leaves some slack."""
    probe = TrainingJob(epochs=1, samples=100, deadline_seconds=float("inf"))
    probe_seconds = statistics.median(seconds for _, seconds in _train(probe, 5, seed))
    samples = max(1, round(epoch_seconds / probe_seconds * probe.samples))
    unhurried = TrainingJob(epochs, samples, deadline_seconds=float("inf"))
    full_seconds = statistics.median(seconds for _, seconds in _train(unhurried, 9, seed))
    return TrainingJob(epochs, samples, slack * full_seconds)


def record_trace(
    rounds: int,
    job: TrainingJob,
    load: float = 0.0,
    seed: int = 0,
    progress: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Measure one trace under one load: a row per round, for a client named after the load ("load-30")."""
    _check(rounds, job.epochs, [load])
    rows: list[Row] = []
    with competitor(load, seed):
        for t, (share, _) in enumerate(_train(job, rounds, seed)):
            rows.append((t, f"load-{round(100 * load)}", share))
            if progress is not None:
                progress(rows[-1])
    return rows


def record_log(
    path: str | Path,
    rounds: int = 40,
    epochs: int = 5,
    loads: Sequence[float] = PAPER_LOADS,
    deadline_seconds: float | None = None,
    epoch_seconds: float = 0.02,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Row]:
    """Measure a trace for every load and write them as a log, one client for each load.

    The default deadline is 1.1 x the median time of a full round without load. Use the log with
    TurnoutLog(path, mode="blocks", of="client").
    """
    _check(rounds, epochs, loads)
    if deadline_seconds is not None and not 0 < deadline_seconds < math.inf:
        raise UserError(f"a deadline of {deadline_seconds}: give the seconds a round may take, a number above 0")
    job = calibrate(epochs, epoch_seconds, seed=seed)
    if deadline_seconds is not None:
        job = TrainingJob(epochs, job.samples, deadline_seconds)
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        if progress is not None:
            progress(len(rows), rounds * len(loads), row)

    for load in loads:
        record_trace(rounds, job, load, seed, add)
    write_turnout(path, rows)
    return rows


def _check(rounds: int, epochs: int, loads: Sequence[float]) -> None:
    if rounds < 1 or epochs < 1:
        raise UserError(f"a trace of {rounds} rounds of {epochs} epochs: both must be 1 or more")
    for load in loads:
        if not 0 <= load < 1:
            raise UserError(f"a load of {load}: give the share of the CPU to take, from 0 to below 1")
    if len({round(100 * load) for load in loads}) < len(loads):
        raise UserError(f"loads {list(loads)}: they name the log's clients, in percent, so they must differ")
