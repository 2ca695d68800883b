"""The records as plain tables, for other programs: a row per round, per client and round, per evaluation, per event.

Numbers that parts have added are columns like the others. Rows are read one after another, so that a run of any length
fits into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from turnout.running.records.records import Records

Kind = type[int] | type[float] | type[str]
Row = tuple[Any, ...]
_KINDS: dict[str, Kind] = {"INTEGER": int, "REAL": float, "TEXT": str}


@dataclass(frozen=True)
class RecordTable:
    """A table to export: rows of `base` (if there is one), with the (name, value) rows of `more` as columns.

    keys  what a row is of: its first columns
    """

    name: str
    keys: tuple[str, ...]
    base: str | None = None
    more: str | None = None

    def columns(self, records: Records) -> dict[str, Kind]:
        """The columns of a run with what they hold; empty where the run has no such rows."""
        found: dict[str, Kind] = {}
        if self.base is not None:
            if records.db.execute(f"SELECT 1 FROM {self.base} LIMIT 1").fetchone() is None:
                return {}
            listed = records.db.execute(f"PRAGMA table_info({self.base})").fetchall()
            found = {row[1]: _KINDS[row[2]] for row in listed if row[1] != "number"}
        if self.more is not None:
            query = f"SELECT name, max(typeof(value) = 'text') FROM {self.more} GROUP BY name ORDER BY name"
            added = {name: str if text else float for name, text in records.db.execute(query)}
            found = (found or (dict.fromkeys(self.keys, int) if added else {})) | added
        return found

    def rows(self, records: Records, columns: Sequence[str]) -> Iterator[Row]:
        """All rows with these columns; None where a run has no such column, or no value."""
        keys = ", ".join(self.keys)
        long: Iterable[Row] = ()
        if self.more is not None:
            long = records.db.execute(f"SELECT {keys}, name, value FROM {self.more} ORDER BY {keys}")
        added = ((key, {r[-2]: r[-1] for r in rows}) for key, rows in groupby(long, lambda r: r[: len(self.keys)]))
        if self.base is None:
            for key, values in added:
                yield self._row(dict(zip(self.keys, key, strict=True)) | values, columns)
            return
        own = [row[1] for row in records.db.execute(f"PRAGMA table_info({self.base})")]
        extra = next(added, None)
        for row in records.db.execute(f"SELECT {', '.join(own)} FROM {self.base} ORDER BY {keys}"):
            values = dict(zip(own, row, strict=True))
            key = tuple(values[name] for name in self.keys)
            while extra is not None and extra[0] < key:
                extra = next(added, None)
            yield self._row(values | (extra[1] if extra is not None and extra[0] == key else {}), columns)

    def _row(self, values: dict[str, Any], columns: Sequence[str]) -> Row:
        return tuple(values.get(name) for name in columns)


TABLES = (
    RecordTable("rounds", ("round",), "rounds", "extras"),
    RecordTable("clients", ("round", "client"), "clients", "client_extras"),
    RecordTable("evaluations", ("round",), more="evaluations"),
    RecordTable("client_evaluations", ("round", "client"), more="client_evaluations"),
    RecordTable("events", ("round", "number"), "events"),
)
