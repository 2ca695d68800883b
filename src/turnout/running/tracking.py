"""Trackers and a callback that receive each finished round; hooks: everything that the caller of a run adds to it.

A tracker shows a run's numbers elsewhere while it runs: TensorBoard, MLflow, W&B (turnout.view.trackers), or your own.
A step is a number of rounds trained: 0 is before training, round t (from 0) is step t + 1. Metrics keep their names;
columns of the round are called `round/...`.

A tracker that fails at the start is an error. One that fails later (its server is gone) is left out from then on, with
a note: a run of hours does not end for it. The folder keeps each tracker's identifier of the run, so that a resumed run
continues there; a tracker that is new to a resumed run receives the earlier rounds from the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from rich.table import Table as RichTable

from turnout.errors import UserError, lacking
from turnout.experiment import Experiment
from turnout.machine.checksums import read_json, write_json
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.config.dotted import usual_code
from turnout.running.config.write import to_table
from turnout.running.folder import unused_name
from turnout.running.loop import FinishedRound
from turnout.running.records.export import round_columns
from turnout.running.records.records import Records

FILE = "tracking.json"
_NOT_LOGGED = ("round", "clock", "skipped", "extra", "clients", "events")
_COLUMNS = tuple(f.name for f in fields(RoundRecord) if f.name not in _NOT_LOGGED)

Function = TypeVar("Function", bound=Callable[..., Any])
OnRound = Callable[[FinishedRound], object]


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker sees it.

    name      the run's name
    group     title of the runs it is made with, or its own name
    folder    the run's folder
    first     first round that will be logged; earlier ones were logged before, or are logged from the records
    before    what `begin` returned when this tracker first saw the run; None the first time
    settings  the experiment as paths and values
    """

    name: str
    group: str
    folder: Path
    first: int = 0
    before: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Tracker(Protocol):
    """Shows the numbers of a run elsewhere. Its constructor refuses what it cannot do, before the run begins."""

    def begin(self, run: TrackedRun) -> str:
        """Start or resume a run; returns an identifier by which a resumed run is found again."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Receive the numbers after `step` rounds (0: before training)."""

    def end(self, state: str) -> None:
        """The run is "finished", "failed" or "interrupted"."""


def own_tracker(name: str) -> Tracker:
    """The tracker that `package.module:Name` names: a class derived from `Tracker`."""
    if ":" not in name:
        raise UserError(f"there is no tracker {name!r} here: write package.module:Name for your own")
    maker = usual_code().named(name, "track")
    if not isinstance(maker, type) or Tracker not in maker.__mro__:
        raise UserError(f"{name} is not declared to be a tracker: derive the class from turnout.roles.Tracker")
    return check_tracker(maker(), name)


def check_tracker(tracker: Any, name: str) -> Tracker:
    """The object, if it has a tracker's methods."""
    if missing := lacking(tracker, Tracker):
        raise UserError(f"{name} is not a tracker, it lacks {', '.join(missing)}: see turnout.roles.Tracker")
    checked: Tracker = tracker
    return checked


# -- hooks


@dataclass(frozen=True)
class Hooks:
    """What the caller of a run adds to it. The core knows neither reports nor tracking services: `to.run`, the command
    line and studies pass `turnout.view.HOOKS`.

    on_end        functions of the folder, called when its runs have ended, also after a failure or an interrupt
    table         makes the table that is printed at the end, from the folder and the width of the terminal
    make_tracker  the tracker that a name in `Experiment.track` stands for
    trackers      trackers that are objects of the user's program
    on_round      a function of each finished round
    """

    on_end: tuple[Callable[[Path], object], ...] = ()
    table: Callable[[Path, int], RichTable] | None = None
    make_tracker: Callable[[str], Tracker] = own_tracker
    trackers: tuple[Tracker, ...] = ()
    on_round: OnRound | None = None

    @property
    def listens(self) -> bool:
        """Whether an object of this process receives each finished round."""
        return bool(self.trackers) or self.on_round is not None


NO_HOOKS: Hooks = Hooks()


def with_hooks(function: Function, hooks: Hooks) -> Function:
    """The function with these hooks, where its caller gives none."""

    @wraps(function)
    def called(*given: Any, **options: Any) -> Any:
        return function(*given, **{"hooks": hooks} | options)

    return cast(Function, called)


# -- numbers


def reason(error: Exception) -> str:
    """The first line of an error of another library."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def numbers_of(record: RoundRecord, evaluation: Evaluation | None) -> dict[str, float]:
    """The numbers of a finished round.

    >>> numbers_of(RoundRecord(0, answered=3, extra={"words": "no"}), Evaluation(0, {"global_accuracy": 0.5}))[
    ...     "round/answered"
    ... ]
    3.0
    """
    columns = {name: getattr(record, name) for name in _COLUMNS} | dict(record.extra)
    return _finite(columns, evaluation.values if evaluation else {})


def _finite(columns: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers by name; texts and gaps are left out."""
    both = dict(metrics) | {f"round/{name}": value for name, value in columns.items()}
    return {name: float(v) for name, v in both.items() if isinstance(v, int | float) and math.isfinite(v)}


def recorded(path: Path, before: int | None = None) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, numbers) of the rounds in a records file, step 0 included; up to a round if one is given."""
    with Records.read(path) as records:
        columns, metrics = round_columns(records), records.metrics()
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        values = dict(zip(columns, row, strict=True))
        if before is None or values["round"] < before:
            measured = {name: values.pop(name) for name in metrics}
            logged = {name: value for name, value in values.items() if name not in _NOT_LOGGED}
            yield values["round"] + 1, _finite(logged, measured)


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Nested tables as paths and texts.

    >>> flat({"rounds": 3, "world": {"data": {"kind": "digits"}}})
    {'rounds': '3', 'world.data.kind': 'digits'}
    """
    settings: dict[str, str] = {}
    for name, value in table.items():
        here = f"{above}.{name}" if above else name
        settings |= flat(value, here) if isinstance(value, Mapping) else {here: str(value)}
    return settings


# -- while a run is running


@dataclass
class Tracking:
    """The trackers of one run.

    trackers  by name
    run       the run
    new       names of those that have not received this run before
    on_round  the user's function
    """

    trackers: dict[str, Tracker]
    run: TrackedRun
    new: set[str]
    on_round: OnRound | None

    def after(self, step: FinishedRound) -> list[str]:
        """Send a finished round; returns sentences about trackers that failed."""
        failed = self.catch_up(step.record.round)
        values = numbers_of(step.record, step.evaluation) if self.trackers else {}
        for name, tracker in list(self.trackers.items()):
            failed += self._call(name, partial(tracker.log, step.record.round + 1, values))
        if self.on_round is not None:
            self.on_round(replace(step, run=self.run.name))
        return failed

    def catch_up(self, first: int | None) -> list[str]:
        """Send the rounds recorded before `first` (None: all) to trackers that are new to this run, once."""
        failed: list[str] = []
        new, self.new = [name for name in self.trackers if name in self.new], set()
        for past, values in recorded(self.run.folder / "records.sqlite", first) if new else ():
            for name in [name for name in new if name in self.trackers]:
                failed += self._call(name, partial(self.trackers[name].log, past, values))
        return failed

    def _call(self, name: str, call: Callable[[], None]) -> list[str]:
        """Call a method of a tracker, and leave the tracker out if that fails."""
        try:
            call()
        except Exception as error:  # any failure of another library
            del self.trackers[name]
            return [f"{name} has failed and is left out from now on: {reason(error)}"]
        return []

    def begin(self, experiment: Experiment, hooks: Hooks) -> None:
        """Begin every tracker, and write its identifier of the run into the folder."""
        named, path = [*experiment.track, *hooks.trackers], self.run.folder / FILE
        known = read_json(path, "delete it, and trackers start a new run") if path.exists() else {}
        known = {str(name): str(value) for name, value in known.items()}
        settings = flat(to_table(experiment)) if named else {}
        for given in dict.fromkeys(named):
            if isinstance(given, str):
                name, tracker = given, hooks.make_tracker(given)
            else:  # named after its class, with a number if there are several
                name = unused_name(type(given).__name__, self.trackers.__contains__, " ")
                tracker = check_tracker(given, repr(given))
            self.new |= set() if name in known else {name}
            known[name] = tracker.begin(replace(self.run, before=known.get(name), settings=settings))
            self.trackers[name] = tracker
        if named:
            write_json(path, known)

    def end(self, state: str) -> None:
        for name, tracker in list(self.trackers.items()):
            self._call(name, partial(tracker.end, state))


@contextmanager
def tracked(experiment: Experiment, run: TrackedRun, hooks: Hooks = NO_HOOKS) -> Iterator[Tracking]:
    """Begin the trackers of the experiment and of the hooks; at the end, send them how the run ended."""
    tracking, state = Tracking({}, run, set(), hooks.on_round), "interrupted"
    try:
        tracking.begin(experiment, hooks)
        yield tracking
        tracking.catch_up(None)  # if the run was complete already
        state = "finished"
    except Exception:
        state = "failed"
        raise
    finally:
        tracking.end(state)
