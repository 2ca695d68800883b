"""Records for other programs: plain tables, columns and pandas frames, and the CSV files that a world can replay."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from turnout.machine.files import replacing
from turnout.machine.optional import optional
from turnout.running.records.records import Records
from turnout.running.records.schema import Column, as_column
from turnout.types import SILENTLY
from turnout.world.log import write_turnout

Kind = type[int] | type[float] | type[str]
Row = tuple[Any, ...]
_KINDS: dict[str, Kind] = {"INTEGER": int, "REAL": float, "TEXT": str}
Columns = dict[str, Column]


@dataclass(frozen=True)
class RecordTable:
    """A table to export.

    name  its name
    keys  its first columns, which identify a row
    base  the table of the records with its rows, if there is one
    more  the table of (name, value) rows that become further columns
    """

    name: str
    keys: tuple[str, ...]
    base: str | None = None
    more: str | None = None

    def columns(self, records: Records) -> dict[str, Kind]:
        """The columns of a run with their types; empty if the run has no such rows."""
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
        """All rows with these columns; None where a run has no such column or no value."""
        keys = ", ".join(self.keys)
        long: Iterable[Row] = ()
        if self.more is not None:
            long = records.db.execute(f"SELECT {keys}, name, value FROM {self.more} ORDER BY {keys}")
        added = ((key, {r[-2]: r[-1] for r in rows}) for key, rows in groupby(long, lambda r: r[: len(self.keys)]))
        if self.base is None:
            for key, values in added:
                row = dict(zip(self.keys, key, strict=True)) | values
                yield tuple(row.get(name) for name in columns)
            return
        own = [row[1] for row in records.db.execute(f"PRAGMA table_info({self.base})")]
        extra = next(added, None)
        for row in records.db.execute(f"SELECT {', '.join(own)} FROM {self.base} ORDER BY {keys}"):
            values = dict(zip(own, row, strict=True))
            key = tuple(values[name] for name in self.keys)
            while extra is not None and extra[0] < key:
                extra = next(added, None)
            values |= extra[1] if extra is not None and extra[0] == key else {}
            yield tuple(values.get(name) for name in columns)


TABLES = (
    RecordTable("rounds", ("round",), "rounds", "extras"),
    RecordTable("clients", ("round", "client"), "clients", "client_extras"),
    RecordTable("evaluations", ("round",), more="evaluations"),
    RecordTable("client_evaluations", ("round", "client"), more="client_evaluations"),
    RecordTable("events", ("round", "number"), "events"),
)


def round_columns(records: Records) -> Columns:
    """Rounds with their evaluations; round -1 is the evaluation before the first."""
    rows = records.db.execute("SELECT round, name, value FROM evaluations").fetchall()
    return _joined(records.rounds(), ["round"], (((t,), name, value) for t, name, value in rows))


def client_columns(records: Records) -> Columns:
    """All clients asked in a round or measured after it, with their records and measurements."""
    rows = records.db.execute("SELECT round, client, name, value FROM client_evaluations").fetchall()
    return _joined(records.clients(), ["round", "client"], (((t, c), name, value) for t, c, name, value in rows))


def _joined(columns: Columns, keys: Sequence[str], more: Iterable[tuple[tuple[int, ...], str, Any]]) -> Columns:
    """Columns joined with the values of `more`, (key, name, value); sorted by key, with NaN for gaps."""
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
    """A pandas DataFrame with these keys as its index, without empty columns."""
    pandas = optional("pandas", "run.frame()", "frames")
    return pandas.DataFrame(columns).set_index(list(keys)).dropna(axis="columns", how="all")


def export_turnout(records: Records, path: str | Path, names: Sequence[str] | None = None) -> Path:
    """Write the observed turnout as the CSV `round,client,work` that `participation` can replay.

    `names`: the clients' names, if the data has them; a log of named clients is read by name.
    """
    path, rows = Path(path), records.turnout_rows()
    named = ((t, names[int(client)], work) for t, client, work in rows) if names else rows
    with replacing(path) as temporary:
        write_turnout(temporary, named)
    return path


def export_events(
    records: Records, path: str | Path, names: Sequence[str] | None = None, outside: Sequence[int] = ()
) -> Path | None:
    """Write who joined and left as the CSV `round,client,event` that an `EventLog` reads; None if no client did.

    `outside`: clients that never were members. Decisions of the membership rules (a dropped client, say)
    are not written: the rules decide them again.
    """
    rows, there = [(0, names[c] if names else c, "outside") for c in outside], dict[int, str]()
    for t, client, kind, detail in records.events():
        event = {"join": "join", "return": "join", "leave": "leave"}.get(kind)
        if event is None or there.get(client) == event:
            continue
        there[client] = event
        word = "vanish" if event == "leave" and detail.startswith(SILENTLY) else event
        rows.append((t, names[client] if names else client, word))
    if not rows:
        return None
    with replacing(Path(path)) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("round", "client", "event"), *rows])
    return Path(path)
