"""The state of run folders: running, finished, interrupted or failed; and lists of runs.

A running process holds the folder's lock. It writes `state.json` when it ends normally; a killed one leaves neither.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from turnout.errors import UserError, out_of_memory
from turnout.experiment import Experiment
from turnout.machine.checksums import read_json, write_json
from turnout.machine.lock import is_locked
from turnout.running.config.run_file import changed_settings
from turnout.running.folder import LOCK_FILE
from turnout.running.records.finding import read_run_list
from turnout.running.records.records import Records
from turnout.running.records.runs import FoundRun
from turnout.tasks import MetricInfo, Unit

FILE = "state.json"
RECORDS = "records.sqlite"
ENDS = ("finished", "failed")  # how a run ends that is not killed or interrupted
LATEST = 1 << 40  # no time is later, in seconds since the epoch
DEEPEST = 4  # levels of folders that are searched


@dataclass(frozen=True)
class RunState:
    """The state of a run folder.

    state   "running", "finished", "interrupted", "failed", or "waiting" (it has not begun)
    done    rounds that are recorded
    rounds  rounds of its experiment; None if its file cannot be read
    why     the reason it failed, or ended before its last round
    when    seconds since the epoch: when it ended, or last wrote something
    metric  the main metric's name
    value   the metric's last value
    unit    the metric's unit
    higher  whether a higher value is better
    """

    state: str
    done: int = 0
    rounds: int | None = None
    why: str | None = None
    when: float = 0.0
    metric: str | None = None
    value: float | None = None
    unit: Unit = "number"
    higher: bool = True


def state_of(folder: Path) -> RunState:
    settings, ended = FoundRun("", None, folder).settings(), _ended(folder)
    rounds = settings.get("rounds")
    rounds = rounds if isinstance(rounds, int) else None
    running = is_held(folder)
    # Readers touch the records of a killed run, so their times do not count.
    names = ["checkpoint.safetensors", "environment.json", "experiment.toml", *([f"{RECORDS}-wal"] if running else [])]
    written = [path.stat().st_mtime for name in names if (path := folder / name).exists()]
    when = ended.get("at") or max(written, default=0.0)
    if not (folder / RECORDS).is_file():
        state = "running" if running else ended.get("state", "waiting")
        return RunState(state, 0, rounds, ended.get("why"), when)
    try:
        done, metric, value, info = _measured(folder, settings)
    except UserError as mistake:  # a run that has just begun has a file without tables
        why = None if running else str(mistake)
        return RunState("running" if running else "failed", 0, rounds, why, when)
    complete = rounds is not None and done >= rounds  # if the folder has no state: it was killed, or is older
    state = "running" if running else ended.get("state") or ("finished" if complete else "interrupted")
    why = ended.get("why") if state in ("failed", "finished") else None
    return RunState(state, done, rounds, why, when, metric, value, info.unit, info.higher_is_better)


def _ended(folder: Path) -> dict[str, Any]:
    """What `state.json` says of how a run ended; nothing if it cannot be read or was not written by a run."""
    try:
        written = read_json(folder / FILE, "the records still show how far it got")
    except (OSError, UserError):
        return {}
    state, why, at = (written.get(name) for name in ("state", "why", "at"))
    is_time = isinstance(at, int | float) and 0 <= at < LATEST
    return written if state in ENDS and isinstance(why, str | None) and is_time else {}


def is_complete(folder: Path, experiment: Experiment) -> bool:
    """Whether a run has ended in its folder with these rounds and stop rules."""
    settings = folder / "experiment.toml"
    if (
        not settings.is_file()
        or not (folder / RECORDS).is_file()
        or changed_settings(settings, experiment, ("title", "runtime"))
    ):
        return False
    state = state_of(folder)
    return state.state == "finished" and (state.why is not None or state.done == experiment.rounds)


def is_held(folder: Path) -> bool:
    """Whether a process works in a run folder."""
    return is_locked(folder / LOCK_FILE)


@dataclass
class RunEnd:
    """How a run ends.

    has_begun  whether this process began its rounds: before, a run that cannot be resumed keeps the state it has
    why        the stop rule that ended it
    """

    has_begun: bool = False
    why: str | None = None


@contextmanager
def state_kept(folder: Path) -> Iterator[RunEnd]:
    """Write how a run ends into its folder, also if one of several cannot begin."""
    end = RunEnd()

    def keep(state: str, why: str | None) -> None:
        write_json(folder / FILE, {"state": state, "why": why, "at": time.time()})

    try:
        yield end
    except Exception as error:
        if end.has_begun or ((folder / "experiment.toml").is_file() and not (folder / RECORDS).is_file()):
            keep("failed", out_of_memory(error) or str(error) or type(error).__name__)
        raise
    keep("finished", end.why)


def _measured(folder: Path, settings: dict[str, Any]) -> tuple[int, str | None, float | None, MetricInfo]:
    """(rounds done, main metric, its last value, its unit and direction)."""
    with Records.read(folder / RECORDS) as records:
        last, glossary = records.last_round(), records.glossary()
        names, stop = glossary.in_order(records.metrics()), settings.get("stop")
        wanted = stop.get("metric") if isinstance(stop, dict) else None
        metric = wanted if wanted in names else next(iter(names), None)
        values = records.curve(metric)[1].tolist() if metric else []
        info = glossary.info(metric) if metric else MetricInfo(True)
        return (0 if last is None else last + 1), metric, values[-1] if values else None, info


# -- lists of runs


@dataclass(frozen=True)
class ListedRun:
    """A run, or several that were made together.

    path   its folder
    state  its state, or that of all together
    parts  the variants and states of runs made together
    """

    path: Path
    state: RunState
    parts: tuple[tuple[str, RunState], ...] = ()

    @property
    def when(self) -> float:
        return max([self.state.when, *(state.when for _, state in self.parts)])


def listed_runs(folder: Path, each: bool = False) -> list[ListedRun]:
    """The runs below a folder, the latest first; `each`: runs made together one by one."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: runs are made by turnout run, under runs/ if no --out is given")
    runs = [run for path in run_folders(folder) for run in _listed(path, each or path == folder)]
    return sorted(runs, key=lambda run: -run.when)


def listed_run(folder: Path) -> ListedRun:
    """One run, or several that were made together as one."""
    return _listed(folder, each=False)[0]


def run_folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Folders that are a run or list runs; not those inside them."""
    is_run = any((folder / name).is_file() for name in ("runs.json", RECORDS))
    if not is_run and (folder / LOCK_FILE).is_file():  # without a lock file, a user wrote its experiment.toml
        is_run = (folder / "experiment.toml").is_file() or is_held(folder)  # while being prepared it has only its lock
    if is_run:
        yield folder
    elif depth < DEEPEST:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith(".") and not path.is_symlink():
                yield from run_folders(path, depth + 1)


def _listed(path: Path, each: bool) -> list[ListedRun]:
    if not (path / "runs.json").is_file():
        return [ListedRun(path, state_of(path))]
    try:
        entries = [(run.variant, run.path) for run in read_run_list(path).runs]
    except (OSError, UserError) as error:
        return [ListedRun(path, RunState("failed", why=str(error)))]
    if each:
        return [ListedRun(inside, state_of(inside)) for _, inside in entries]
    parts = tuple((variant, state_of(inside)) for variant, inside in entries)
    return [ListedRun(path, _together(path, parts), parts)]


def _together(path: Path, parts: Sequence[tuple[str, RunState]]) -> RunState:
    """Several runs as one: the number in each state, all their rounds, the best variant's mean."""
    counts = Counter(part.state for _, part in parts)
    words = ", ".join(f"{n} {name}" for name, n in counts.items())
    state = next(iter(counts)) if len(counts) == 1 else words
    if "running" not in counts and is_held(path):  # processes start, or data is loaded
        state = f"running ({words})"
    why = next((part.why for _, part in parts if part.state == "failed"), None)
    together = RunState(state, sum(p.done for _, p in parts), sum(p.rounds or 0 for _, p in parts), why)
    values: dict[str, list[float]] = {}
    for variant, part in parts:
        if part.value is not None:
            values.setdefault(variant, []).append(part.value)
    like = next((part for _, part in parts if part.value is not None), None)
    if like is None:
        return together
    means = {variant: fmean(finals) for variant, finals in values.items()}
    best = max(means, key=lambda variant: means[variant] if like.higher else -means[variant])
    return replace(together, metric=f"{best}: {like.metric}", value=means[best], unit=like.unit)
