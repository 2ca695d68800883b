"""What happened in a run, as rows of `records.sqlite`: rounds, clients of a round, evaluations, events.

A round is one transaction: its row, its clients, its events and its evaluation are written together or not at all, so a
run can be killed at any moment. The file is in WAL mode, so other processes can read while the run writes. NaN is NULL
in the file and NaN again in the columns read back. The table `now`, for live views, exists only while a round runs.
"""

from __future__ import annotations

import json
import marshal
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import UserError, nearest
from turnout.machine.checksums import Damaged, digest
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.records.glossary import Glossary
from turnout.running.records.schema import (
    CLIENT_COLUMNS,
    KEYS,
    METRICS,
    RESTORE,
    SUMS,
    WARNINGS,
    Column,
    Database,
    as_column,
    checked,
    connected,
    transaction,
)
from turnout.tasks import MetricInfo

_ROUND_COLUMNS = tuple(f.name for f in fields(RoundRecord) if f.name not in ("extra", "clients", "events"))


class Records:
    """The rows of one run. `open` to write, `read` to read; both are context managers.

    path  the file
    db    its connection
    """

    def __init__(self, path: Path, db: Database) -> None:
        self.path = path
        self.db = db

    @classmethod
    def open(cls, path: str | Path) -> Records:
        """Open for writing; creates the file if it does not exist."""
        path = Path(path)
        if not path.parent.is_dir():
            raise UserError(f"no folder {path.parent} to keep {path.name} in; create it first")
        records = cls(path, checked(connected(path), path, create=True))
        records.db.execute(SUMS)
        return records

    @classmethod
    def read(cls, path: str | Path) -> Records:
        """Open for reading; a run may be writing at the same time."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"no records at {path}; a run folder has a file records.sqlite")
        if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
            mode = "mode=rw"  # readers of a WAL file share two files beside it, which they write
        else:
            mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "immutable=1"
        db = connected(path, f"{path.absolute().as_uri()}?{mode}")
        db.execute("PRAGMA query_only = ON")
        return cls(path, checked(db, path, create=False))

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing

    def add_round(self, record: RoundRecord, evaluation: Evaluation | None = None) -> None:
        """Write a round and its evaluation in one transaction."""
        with transaction(self.db, self.path, f"round {record.round}"):
            self._insert("rounds", [tuple(_plain(getattr(record, name)) for name in _ROUND_COLUMNS)])
            self._insert("extras", [(record.round, name, _plain(value)) for name, value in record.extra.items()])
            if clients := record.clients:
                ids = clients["client"].tolist()
                columns = [clients[name].tolist() if name in clients else [None] * len(ids) for name in CLIENT_COLUMNS]
                self._insert("clients", list(zip([record.round] * len(ids), ids, *columns, strict=True)))
                for name in clients.keys() - {"client", *CLIENT_COLUMNS}:
                    pairs = zip(ids, clients[name].tolist(), strict=True)
                    self._insert("client_extras", [(record.round, name, c, v) for c, v in pairs])
            self._insert("events", [(record.round, i, *event) for i, event in enumerate(record.events)])
            if evaluation is not None:
                self._insert_evaluation(evaluation)
            self._seal(record.round)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Write an evaluation without a new round: before training, or after the last round."""
        with transaction(self.db, self.path, f"the evaluation of round {evaluation.round}"):
            self._insert_evaluation(evaluation)
            self._seal(evaluation.round)

    def describe(self, metrics: Mapping[str, MetricInfo]) -> None:
        """Write what the task knows of its metrics, the main one first; `glossary` reads it."""
        rows = [(i, name, info.higher_is_better, info.unit) for i, (name, info) in enumerate(metrics.items())]
        with transaction(self.db, self.path, "the list of metrics"):
            self.db.execute(METRICS)
            self.db.execute("DELETE FROM metrics")
            self._insert("metrics", rows)

    def warn(self, sentences: Sequence[str]) -> None:
        """Write the warnings from before the first round, for the report."""
        with transaction(self.db, self.path, "the warnings"):
            self.db.execute(WARNINGS)
            self.db.execute("DELETE FROM warnings")
            self._insert("warnings", list(enumerate(sentences)))

    def cut(self, after: int) -> None:
        """Delete everything after a round; a resumed run computes it again."""
        with transaction(self.db, self.path, f"the cut after round {after}"):
            for table in KEYS:
                self.db.execute(f"DELETE FROM {table} WHERE round > ?", (after,))
            self.db.execute("DELETE FROM sums WHERE round > ?", (after,))

    def sync(self) -> None:
        """Flush committed rows to disk, before a checkpoint: it must not be newer than the records."""
        self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _seal(self, t: int) -> None:
        """Write the checksum of a round's rows beside them."""
        self.db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?)", (t, self._sum_of(t)))

    def _sum_of(self, t: int) -> str:
        content = []
        for table, keys in KEYS.items():
            rows = self.db.execute(f"SELECT * FROM {table} WHERE round = ? ORDER BY {', '.join(keys)}", (t,))
            content.append(marshal.dumps(rows.fetchall(), 2))  # version 2 has no references: the same bytes anywhere
        return digest(*content)

    def check(self) -> None:
        """Refuse damaged records, in structure or in rows: a resumed run would give other results."""
        if (why := self._damage()) is not None:
            raise Damaged(self.path, why, RESTORE)

    def _damage(self) -> str | None:
        """What is damaged, in words; None if nothing is."""
        found = self._one("PRAGMA integrity_check(1)")
        if found != "ok":
            return str(found)
        if not self.has_table("sums"):
            return None  # an older version wrote it
        sums = dict(self.db.execute("SELECT round, digest FROM sums").fetchall())
        written = {t for table in ("rounds", "evaluations") for (t,) in self.db.execute(f"SELECT round FROM {table}")}
        if odd := [t for t in (*sums, *written) if not isinstance(t, int)]:
            return f"a round is numbered {odd[0]!r}"
        unsealed = {t for t in written if t >= min(sums, default=t + 1)} - sums.keys()
        wrong = sorted({t for t, written in sums.items() if self._sum_of(t) != written} | unsealed)
        if not wrong:
            return None
        many = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return f"the rows of round {', '.join(map(str, wrong[:3]))}{many} are not what was written"

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ",".join("?" * len(rows[0]))
            self.db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _insert_evaluation(self, evaluation: Evaluation) -> None:
        t = evaluation.round
        self._insert("evaluations", [(t, name, value) for name, value in evaluation.values.items()])
        for name, (client_C, value_C) in evaluation.per_client.items():
            pairs = zip(client_C.tolist(), value_C.tolist(), strict=True)
            self._insert("client_evaluations", [(t, name, c, v) for c, v in pairs])

    # -- reading

    def last_round(self) -> int | None:
        """The last round written, None before the first."""
        return self._one("SELECT max(round) FROM rounds")

    def rounds(self) -> dict[str, Column]:
        """All rounds as columns, in order, with a column for each number that parts add."""
        columns = self._columns("rounds", _ROUND_COLUMNS)
        rows = self.db.execute("SELECT name, round, value FROM extras")
        return columns | _aligned(columns["round"].tolist(), rows)

    def column(self, name: str) -> Column:
        """One column of `rounds()`."""
        columns = self.rounds()
        if name not in columns:
            raise UserError(f"{self.path} has no round column {name!r}; {nearest(name, columns)}")
        return columns[name]

    def glossary(self) -> Glossary:
        """Which way each number is better, and its unit."""
        if not self.has_table("metrics"):
            return Glossary()
        rows = self.db.execute("SELECT name, higher_is_better, unit FROM metrics ORDER BY place")
        return Glossary({name: MetricInfo(bool(higher), unit) for name, higher, unit in rows})

    def warnings(self) -> list[str]:
        """The warnings from before the first round."""
        if not self.has_table("warnings"):
            return []
        return [words for (words,) in self.db.execute("SELECT words FROM warnings ORDER BY place")]

    def metrics(self) -> list[str]:
        """The names of the metrics that were evaluated."""
        return [name for (name,) in self.db.execute("SELECT DISTINCT name FROM evaluations ORDER BY name")]

    def curve(self, metric: str) -> tuple[Column, Column]:
        """An evaluated metric, or a column of the rounds, as (rounds, values) without missing values."""
        query = "SELECT round, value FROM evaluations WHERE name = ? AND value IS NOT NULL ORDER BY round"
        rows = self.db.execute(query, (metric,)).fetchall()
        if rows or metric in self.metrics():
            return np.array([t for t, _ in rows], np.int64), np.array([v for _, v in rows], np.float64)
        columns = self.rounds()
        if metric not in columns:
            raise UserError(f"{self.path} has no metric {metric!r}; {nearest(metric, [*self.metrics(), *columns])}")
        try:
            values = columns[metric].astype(np.float64)
        except ValueError:
            raise UserError(f"{metric!r} in {self.path} is text, not a number; it has no curve") from None
        return columns["round"][~np.isnan(values)], values[~np.isnan(values)]

    def clients(self, t: int | None = None) -> dict[str, Column]:
        """The rows of the clients, of one round or of all, as columns ordered by round and client.

        Columns without any value are left out, except "round", "client" and "work".
        """
        where, values = ("", ()) if t is None else (" WHERE round = ?", (t,))
        columns = self._columns("clients", ("round", "client", *CLIENT_COLUMNS), where, values)
        keep = {"round", "client", "work"}
        columns = {n: c for n, c in columns.items() if n in keep or c.dtype != np.float64 or not np.isnan(c).all()}
        if self._one("SELECT 1 FROM client_extras" + where + " LIMIT 1", values) is None:
            return columns
        keys = list(zip(columns["round"].tolist(), columns["client"].tolist(), strict=True))
        rows = self.db.execute("SELECT name, round, client, value FROM client_extras" + where, values)
        return columns | _aligned(keys, ((name, (s, client), value) for name, s, client, value in rows))

    def turnout_rows(self, after: int = -1) -> Iterator[tuple[int, int, float]]:
        """(round, client, work) of all clients asked after a round; work is the fraction finished, 0 if absent."""
        query = "SELECT round, client, work FROM clients WHERE round > ? AND work IS NOT NULL ORDER BY round, client"
        yield from self.db.execute(query, (after,))

    def client_metrics(self) -> list[str]:
        """The names of the metrics that were evaluated for each client."""
        return [name for (name,) in self.db.execute("SELECT DISTINCT name FROM client_evaluations ORDER BY name")]

    def client_evaluation(self, name: str) -> tuple[Column, Column]:
        """(clients, values) of a metric that was evaluated for each client, the latest time."""
        t = self._one("SELECT max(round) FROM client_evaluations WHERE name = ?", (name,))
        if t is None:
            raise UserError(f"{self.path} has no client metric {name!r}; {nearest(name, self.client_metrics())}")
        where = " WHERE name = ? AND round = ?"
        columns = self._columns("client_evaluations", ("client", "value"), where, (name, t))
        return columns["client"], columns["value"]

    def events(self) -> list[tuple[int, int, str, str]]:
        """(round, client, kind, detail) of every event of the membership, in order."""
        return self.db.execute("SELECT round, client, kind, detail FROM events ORDER BY round, number").fetchall()

    def has_table(self, name: str) -> bool:
        """Whether the file has a table; older folders lack some."""
        return self._one("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)) is not None

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        row = self.db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _columns(
        self, table: str, names: Sequence[str], where: str = "", values: tuple[Any, ...] = ()
    ) -> dict[str, Column]:
        query = f"SELECT {', '.join(names)} FROM {table}{where} ORDER BY {', '.join(KEYS[table])}"
        rows = self.db.execute(query, values).fetchall()
        lists = zip(*rows, strict=True) if rows else ([] for _ in names)
        return {name: as_column(list(column)) for name, column in zip(names, lists, strict=True)}


def _aligned(keys: list[Any], rows: Iterable[tuple[str, Any, Any]]) -> dict[str, Column]:
    """(name, key, value) rows as columns in the order of the keys."""
    place = {key: i for i, key in enumerate(keys)}
    columns: dict[str, list[Any]] = {}
    for name, key, value in rows:
        if key in place:
            columns.setdefault(name, [None] * len(place))[place[key]] = value
    return {name: as_column(values) for name, values in columns.items()}


def _plain(value: Any) -> Any:
    """A numpy number as Python's: SQLite would keep its bytes."""
    return value.item() if isinstance(value, np.generic) else value


# -- which clients train now, for live views

MOST_NAMED = 1000  # clients
NOW = """
CREATE TABLE IF NOT EXISTS now (place INTEGER PRIMARY KEY, round INTEGER, at REAL, asked INTEGER, clients TEXT)
"""


class AtWork(NamedTuple):
    """The cohort of the running round.

    round    its number
    at       when they were asked, in seconds since the epoch
    asked    how many clients were asked
    clients  the first of them
    """

    round: int
    at: float
    asked: int
    clients: list[int]


def keep_now(records: Records, t: int, clients: Sequence[int]) -> None:
    """Write the cohort of the running round."""
    with transaction(records.db, records.path, "the running round"):
        records.db.execute(NOW)
        row = (0, t, time.time(), len(clients), json.dumps(list(clients[:MOST_NAMED])))
        records.db.execute("INSERT OR REPLACE INTO now VALUES (?,?,?,?,?)", row)


def end_now(records: Records) -> None:
    """Delete the cohort of the running round: none is running any more."""
    with transaction(records.db, records.path, "the end of the round"):
        records.db.execute("DROP TABLE IF EXISTS now")


def read_now(records: Records) -> AtWork | None:
    """The cohort of the running round; None if no round is running, or none was written."""
    if not records.has_table("now"):
        return None
    row = records.db.execute("SELECT round, at, asked, clients FROM now").fetchone()
    return None if row is None else AtWork(row[0], row[1], row[2], json.loads(row[3]))
