"""The runs of a race: one run in memory, many side by side, and their outcomes on disk, so that none is run twice."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.machine.files import write_whole
from turnout.machine.threads import end_with_parent, script_left_alone
from turnout.running.folder import contents
from turnout.running.side_by_side import worker_context
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.track import Track

POINTS = 15  # how often a run is evaluated
TRIALS, QUESTION = "trials.jsonl", "question.json"


@dataclass(frozen=True)
class TrialOutcome:
    """The measurements of a run.

    rounds    how many rounds had been trained at each evaluation
    values    metrics by name, at these rounds
    sent      bytes, both ways, by then
    up, down  bytes of the whole run
    devices   seconds that devices were at work, all together; 0 if time is not simulated
    waited    simulated seconds that the rounds took
    seconds   the run took
    diverged  why it ended before its last round, if it did
    """

    rounds: tuple[int, ...] = ()
    values: dict[str, tuple[float, ...]] = field(default_factory=dict)
    sent: tuple[float, ...] = ()
    up: float = 0.0
    down: float = 0.0
    devices: float = 0.0
    waited: float = 0.0
    seconds: float = 0.0
    diverged: str = ""

    def final(self, metric: str, part: int = 4) -> float:
        """The mean over the last quarter of the evaluations: a single one depends on who came last."""
        found = self.values.get(metric, ())
        late = found[-max(1, len(found) // part) :]
        return math.fsum(late) / len(late) if late else math.nan

    @classmethod
    def read(cls, data: dict[str, Any]) -> TrialOutcome:
        """From JSON."""
        lists = {name: tuple(data[name]) for name in ("rounds", "sent")}
        return cls(**{**data, **lists, "values": {name: tuple(v) for name, v in data["values"].items()}})


class Trial(NamedTuple):
    """One run to make.

    part       of the advice that it is for: the race, second runs, levers, a target
    candidate  its name
    settings   its learning rate, in words
    case       the world it runs in
    seed       from 0
    """

    part: str
    candidate: str
    settings: str
    case: str
    seed: int


class TrialLedger:
    """The outcomes of trials, in memory and in a file of the advice's folder, one line of JSON each.

    outcomes  by trial
    spent     seconds that the advice has taken so far
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.spent = folder, folder / TRIALS, 0.0
        self.outcomes: dict[Trial, TrialOutcome] = {}
        before = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        if before and not before.endswith("\n"):
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("\n")
        for line in before.splitlines():
            try:
                found = json.loads(line)
                self.outcomes[Trial(**found["trial"])] = TrialOutcome.read(found["outcome"])
            except (ValueError, KeyError, TypeError):
                continue  # the line that was being written when the process was killed
            self.spent = max(self.spent, found.get("spent", 0.0))

    def add(self, trial: Trial, outcome: TrialOutcome, spent: float) -> None:
        self.outcomes[trial], self.spent = outcome, spent
        known = {name: value for name, value in outcome.__dict__.items() if value == value}  # JSON has no NaN
        line = json.dumps({"trial": trial._asdict(), "outcome": known, "spent": round(spent, 2)})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def refuse_another(self, question: Mapping[str, Any]) -> None:
        """Write the question (log, experiment, aim, candidates), or refuse a folder that is about another one."""
        path = self.folder / QUESTION
        if not path.exists():
            write_whole(path, json.dumps(dict(question), indent=2) + "\n")
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name in question if before.get(name) != json.loads(json.dumps(question[name]))]
        if changed:
            raise UserError(
                f"{self.folder} is the advice on another question ({', '.join(changed)} differ): "
                "choose another --out folder"
            )


def refuse_full(folder: Path) -> None:
    """Refuse a folder that holds anything but an advice to resume."""
    if folder.is_dir() and contents(folder) and not (folder / QUESTION).is_file():
        raise UserError(f"{folder} holds something else: choose another --out folder, or an empty one")


def measure(experiment: Experiment, data_dir: Path | None = None) -> TrialOutcome:
    """Run an experiment and keep its measurements."""
    before, start = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    track = prepare(experiment, data_dir)
    try:
        return _rounds(track, start)
    finally:
        track.runtime.close()
        torch.set_num_threads(before)


def _rounds(track: Track, start: float) -> TrialOutcome:
    experiment, state = track.experiment, track.begin()
    every = max(1, experiment.rounds // POINTS)
    up = down = devices = waited = 0.0
    rounds, sent, measured, why = [], [], [], ""
    for t in range(experiment.rounds):
        try:
            state, record = track.round(state, t)
            up, down = up + record.bytes_up, down + record.bytes_down
            devices += float(record.extra.get("device_seconds", 0.0))
            waited += float(record.extra.get("simulated_seconds", 0.0))
            if (t + 1) % every and t + 1 < experiment.rounds:
                continue
            found = track.evaluate(state, t).values
        except UserError as error:  # an update or a loss that is not finite
            why = str(error)
            break
        if not all(math.isfinite(v) for name, v in found.items() if name.endswith("_loss")):
            why = f"the loss is not finite after round {t}"
            break
        rounds.append(t + 1)
        sent.append(up + down)
        measured.append(found)
    names = [name for name in (measured[0] if measured else {}) if all(name in found for found in measured)]
    values = {name: tuple(found[name] for found in measured) for name in names}
    seconds = time.perf_counter() - start
    return TrialOutcome(tuple(rounds), values, tuple(sent), up, down, devices, waited, seconds, why)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    end_with_parent()


class TrialWorkers:
    """Runs trials, `jobs` at a time in processes that stay; with one job, in this process."""

    def __init__(self, jobs: int, data_dir: Path | None = None) -> None:
        self.data_dir, self.jobs = data_dir, jobs
        self.pool = ProcessPoolExecutor(jobs, worker_context(), _begin_worker) if jobs > 1 else None

    def __enter__(self) -> TrialWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def outcomes(
        self, work: Iterable[tuple[Trial, Experiment]], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[Trial, TrialOutcome]]:
        """Every trial's outcome as it ends; once `stop` is true no further one is started."""
        ahead: dict[Future[TrialOutcome], Trial] = {}

        def ended() -> Iterator[tuple[Trial, TrialOutcome]]:
            for future in wait(ahead, return_when=FIRST_COMPLETED).done:
                yield ahead.pop(future), future.result()

        for trial, experiment in work:
            if stop():
                break
            if self.pool is None:
                yield trial, measure(experiment, self.data_dir)
                continue
            with script_left_alone():
                ahead[self.pool.submit(measure, experiment, self.data_dir)] = trial
            if len(ahead) > self.jobs:
                yield from ended()
        while ahead:
            yield from ended()
