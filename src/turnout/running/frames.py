"""The records as columns and, where pandas is installed, as frames: a row per round, or per client and round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from turnout.machine.optional import optional
from turnout.running.records.records import Records
from turnout.running.records.schema import Column, as_column

Columns = dict[str, Column]


def round_columns(records: Records) -> Columns:
    """Rounds with what was measured after them; before the first is the round -1, which has only that."""
    rows = records.db.execute("SELECT round, name, value FROM evaluations").fetchall()
    return _joined(records.rounds(), ["round"], (((t,), name, value) for t, name, value in rows))


def client_columns(records: Records) -> Columns:
    """Everyone who was asked in a round, or measured after it, with what was recorded and measured."""
    rows = records.db.execute("SELECT round, client, name, value FROM client_evaluations").fetchall()
    return _joined(records.clients(), ["round", "client"], (((t, c), name, value) for t, c, name, value in rows))


def _joined(columns: Columns, keys: Sequence[str], more: Iterable[tuple[tuple[int, ...], str, Any]]) -> Columns:
    """Columns with the values of `more`, (key, name, value), beside them; sorted by key, with NaN for gaps."""
    table: dict[tuple[int, ...], dict[str, Any]] = {}
    names = [name for name in columns if name not in keys]
    for values in zip(*(columns[name].tolist() for name in (*keys, *names)), strict=True):
        table[values[: len(keys)]] = dict(zip(names, values[len(keys) :], strict=True))
    for key, name, value in more:
        table.setdefault(key, {})[name] = value
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    order = sorted(table)
    found = {name: as_column([key[i] for key in order]) for i, name in enumerate(keys)}
    return found | {name: as_column([table[key].get(name) for key in order]) for name in names}


def as_frame(columns: Columns, keys: Sequence[str]) -> Any:
    """A pandas DataFrame with these keys as its index; columns without any value are left out."""
    pandas = optional("pandas", "run.frame()", "frames")
    return pandas.DataFrame(columns).set_index(list(keys)).dropna(axis="columns", how="all")
