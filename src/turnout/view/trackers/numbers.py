"""A round as numbers with names: what was measured under its own name, what happened in the round as `round/...`.

A step is a number of rounds trained: 0 is before training, round t (from 0) is step t + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from turnout.round_log import Evaluation, RoundRecord
from turnout.running.records.export import TABLES
from turnout.running.records.records import Records

_COLUMNS = tuple(
    f.name
    for f in fields(RoundRecord)
    if f.name not in ("round", "clock", "skipped", "extra", "clients", "events")
)  # fmt: skip


def numbers_of(record: RoundRecord, evaluation: Evaluation | None) -> dict[str, float]:
    """The numbers of a finished round.

    >>> numbers_of(RoundRecord(0, answered=3, extra={"words": "no"}), Evaluation(0, {"global_accuracy": 0.5}))[
    ...     "round/answered"
    ... ]
    3.0
    """
    happened = {name: getattr(record, name) for name in _COLUMNS} | dict(record.extra)
    return named(happened, evaluation.values if evaluation else {})


def named(happened: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers by name; words and gaps are left out."""
    both = dict(measured) | {f"round/{name}": value for name, value in happened.items()}
    numbers = {name: float(value) for name, value in both.items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def recorded(path: Path, before: int | None = None) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, numbers) of the rounds in a records file: all, or those before a round; also from before training."""
    tables = {table.name: table for table in TABLES}
    with Records.read(path) as records:
        rows: dict[str, dict[int, dict[str, Any]]] = {}
        for name in ("rounds", "evaluations"):
            columns = list(tables[name].columns(records))
            found = tables[name].rows(records, columns) if columns else iter(())
            rows[name] = {row[columns.index("round")]: dict(zip(columns, row, strict=True)) for row in found}
    leave_out = {"round", "clock", "skipped"}
    for t in sorted(rows["rounds"].keys() | rows["evaluations"].keys()):
        if before is None or t < before:
            happened = {n: v for n, v in rows["rounds"].get(t, {}).items() if n not in leave_out}
            measured = {n: v for n, v in rows["evaluations"].get(t, {}).items() if n != "round"}
            yield t + 1, named(happened, measured)
