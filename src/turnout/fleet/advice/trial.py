"""One run of the race, in memory: a few numbers along the way are all that is kept of it."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.machine.threads import script_left_alone
from turnout.running.side_by_side import worker_context
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.track import Track

POINTS = 15  # how often a run is evaluated


@dataclass(frozen=True)
class Outcome:
    """What a run measured: metrics by name at some rounds, and the bytes (both ways) it had sent by then.

    diverged  why it ended before its last round: numbers that are none
    """

    rounds: tuple[int, ...] = ()
    values: dict[str, tuple[float, ...]] = field(default_factory=dict)
    sent: tuple[float, ...] = ()
    up: float = 0.0
    down: float = 0.0
    turnout: float = math.nan
    seconds: float = 0.0
    diverged: str = ""

    def final(self, metric: str, part: int = 4) -> float:
        """The mean over the last quarter of the evaluations: one alone depends on who came last."""
        found = self.values.get(metric, ())
        late = found[-max(1, len(found) // part) :]
        return math.fsum(late) / len(late) if late else math.nan

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {name: value for name, value in self.__dict__.items() if value == value}

    @classmethod
    def read(cls, data: dict[str, Any]) -> Outcome:
        lists = {name: tuple(data[name]) for name in ("rounds", "sent")}
        return cls(**{**data, **lists, "values": {name: tuple(v) for name, v in data["values"].items()}})


@dataclass(frozen=True)
class Trial:
    """One run to make: a candidate with some settings in a case, with a seed; `part` of the advice it is for."""

    part: str
    candidate: str
    settings: str
    case: str
    seed: int

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return self.part, self.candidate, self.settings, self.case, self.seed


def measure(experiment: Experiment, data_dir: Path | None = None) -> Outcome:
    """Run an experiment and keep what was measured."""
    before, start = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    track = prepare(experiment, data_dir)
    try:
        return _rounds(track, start)
    finally:
        track.close()
        torch.set_num_threads(before)


def _rounds(track: Track, start: float) -> Outcome:
    experiment, state = track.experiment, track.begin()
    every = max(1, experiment.rounds // POINTS)
    up = down = 0.0
    asked = answered = 0
    rounds, sent, measured, why = [], [], [], ""
    for t in range(experiment.rounds):
        try:
            state, record = track.round(state, t)
            up, down = up + record.bytes_up, down + record.bytes_down
            asked, answered = asked + record.asked, answered + record.answered
            if (t + 1) % every and t + 1 < experiment.rounds:
                continue
            found = track.evaluate(state, t).values
        except UserError as mistake:  # an update or a loss that is no number
            why = str(mistake)
            break
        if not all(math.isfinite(v) for name, v in found.items() if name.endswith("_loss")):
            why = f"the loss is not finite after round {t}"
            break
        rounds.append(t + 1)
        sent.append(up + down)
        measured.append(found)
    names = [name for name in (measured[0] if measured else {}) if all(name in found for found in measured)]
    values = {name: tuple(found[name] for found in measured) for name in names}
    turnout = answered / asked if asked else math.nan
    return Outcome(tuple(rounds), values, tuple(sent), up, down, turnout, time.perf_counter() - start, why)


def _begin_worker() -> None:
    """Ctrl-C is for the process that waits for this one; when that is killed, this one ends too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Workers:
    """Runs trials, `jobs` at a time in processes that stay; with one job, in this process."""

    def __init__(self, jobs: int, data_dir: Path | None = None) -> None:
        self.data_dir, self.jobs = data_dir, jobs
        self.pool = ProcessPoolExecutor(jobs, worker_context(), _begin_worker) if jobs > 1 else None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def outcomes(
        self, work: Iterable[tuple[Trial, Experiment]], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[Trial, Outcome]]:
        """Every trial's outcome as it ends; once `stop` says so no further one is begun."""
        ahead: dict[Future[Outcome], Trial] = {}
        for trial, experiment in work:
            if stop():
                break
            if self.pool is None:
                yield trial, measure(experiment, self.data_dir)
                continue
            with script_left_alone():
                ahead[self.pool.submit(measure, experiment, self.data_dir)] = trial
            if len(ahead) > self.jobs:
                yield from _ended(ahead)
        while ahead:
            yield from _ended(ahead)


def _ended(ahead: dict[Future[Outcome], Trial]) -> Iterator[tuple[Trial, Outcome]]:
    for future in wait(ahead, return_when=FIRST_COMPLETED).done:
        yield ahead.pop(future), future.result()
