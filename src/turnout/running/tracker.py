"""What a tracker promises, and the numbers it receives.

A tracker shows a run's numbers elsewhere while it runs: TensorBoard, MLflow, W&B (turnout.view.trackers), or your own.
A step is a number of rounds trained: 0 is before training, round t (from 0) is step t + 1. Metrics keep their names;
columns of the round are called `round/...`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from turnout.errors import UserError, lacking
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.config.dotted import usual_code
from turnout.running.records.export import round_columns
from turnout.running.records.records import Records

_NOT_LOGGED = ("round", "clock", "skipped", "extra", "clients", "events")
_COLUMNS = tuple(f.name for f in fields(RoundRecord) if f.name not in _NOT_LOGGED)


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


MakeTracker = Callable[[str], Tracker]


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
    found: dict[str, str] = {}
    for name, value in table.items():
        here = f"{above}.{name}" if above else name
        found |= flat(value, here) if isinstance(value, Mapping) else {here: str(value)}
    return found
