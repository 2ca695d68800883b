"""What happened in a run, as rows of `records.sqlite`: rounds, clients of a round, evaluations, events.

A round is one transaction: its row, its clients, its events and its evaluation are written together or not at all, so a
run can be killed at any moment. The file is in WAL mode, so other processes can read while the run writes. NaN is NULL
in the file and NaN again in the columns read back.
"""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import UserError, nearest
from turnout.machine.checksums import Damaged, digest
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.records.glossary import Glossary
from turnout.running.records.schema import (
    CLIENT_COLUMNS,
    KEYS,
    RESTORE,
    TABLES,
    Column,
    WideTable,
    as_column,
    connect,
    explained,
    odd_value,
    transaction,
)
from turnout.tasks import MetricInfo

FILE = "records.sqlite"
_ROUND_COLUMNS = tuple(f.name for f in fields(RoundRecord) if f.name not in ("extra", "clients", "events"))


class Records:
    """The rows of one run. `open` to write, `read` to read; both are context managers.

    path  the file
    db    its connection
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self.db = db

    @classmethod
    def open(cls, path: str | Path) -> Records:
        """Open for writing; creates the file if it does not exist."""
        path = Path(path)
        if not path.parent.is_dir():
            raise UserError(f"no folder {path.parent} to keep {path.name} in; create it first")
        return cls(path, connect(path, create=True))

    @classmethod
    def read(cls, path: str | Path) -> Records:
        """Open for reading; a run may be writing at the same time."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"no records at {path}; a run folder has a file {FILE}")
        return cls(path, connect(path, create=False))

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Close; an error in the block that is due to a value of another kind in the file is raised as its damage."""
        try:
            if isinstance(error, ArithmeticError | TypeError | ValueError) and not isinstance(error, UserError):
                self.check_kinds(everywhere=True)
        finally:
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
            self.db.execute("DELETE FROM metrics")
            self._insert("metrics", rows)

    def warn(self, sentences: Sequence[str]) -> None:
        """Write the warnings from before the first round, for the report."""
        with transaction(self.db, self.path, "the warnings"):
            self.db.execute("DELETE FROM warnings")
            self._insert("warnings", list(enumerate(sentences)))

    def cut(self, after: int) -> None:
        """Delete everything after a round; a resumed run computes it again."""
        with transaction(self.db, self.path, f"the cut after round {after}"):
            for table in (*KEYS, "sums"):
                self.db.execute(f"DELETE FROM {table} WHERE round > ?", (after,))

    def sync(self) -> None:
        """Flush committed rows to disk, before a checkpoint: it must not be newer than the records."""
        list(self.rows("PRAGMA wal_checkpoint(PASSIVE)"))

    def _seal(self, t: int) -> None:
        """Write the checksum of a round's rows beside them."""
        self.db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?)", (t, self._sum_of(t)))

    def _sum_of(self, t: int) -> str:
        content = []
        for table, keys in KEYS.items():
            rows = list(self.rows(f"SELECT * FROM {table} WHERE round = ? ORDER BY {', '.join(keys)}", t))
            content.append(marshal.dumps(rows, 2))  # version 2 has no references: the same bytes anywhere
        return digest(*content)

    def check(self) -> None:
        """Refuse damaged records, in structure or in rows: a resumed run would give other results."""
        if (why := self._damage()) is not None:
            raise Damaged(self.path, why, RESTORE)

    def check_kinds(self, everywhere: bool = False) -> None:
        """Refuse records with a text among numbers, and the like; `everywhere`: also in the large tables."""
        with explained(self.path):
            if (why := odd_value(self.db, everywhere)) is not None:
                raise Damaged(self.path, why, RESTORE)

    def _damage(self) -> str | None:
        """What is damaged, in words; None if nothing is."""
        problem = self._one("PRAGMA integrity_check(1)")
        if problem != "ok":
            return str(problem)
        sums = dict(self.rows("SELECT round, digest FROM sums"))
        written = {t for (t,) in self.rows("SELECT round FROM rounds UNION SELECT round FROM evaluations")}
        if odd := [t for t in (*sums, *written) if not isinstance(t, int)]:
            return f"a round is numbered {odd[0]!r}"
        wrong = sorted({t for t, expected in sums.items() if self._sum_of(t) != expected} | written - sums.keys())
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

    def rows(self, query: str, *values: Any) -> Generator[tuple[Any, ...], None, None]:
        """The rows of a query, one by one: a run of any length fits."""
        with explained(self.path):
            for row in self.db.execute(query, values):  # noqa: UP028  a cursor may outlive its connection
                yield row

    def _one(self, query: str, *values: Any) -> Any:
        return next((row[0] for row in self.rows(query, *values)), None)

    def wide(self, table: WideTable, where: str = "") -> tuple[list[str], Generator[tuple[Any, ...], None, None]]:
        """(columns, rows) of a table with a column for each name, in the order of its keys."""
        keys = ", ".join(table.keys)
        columns = [name for (_, name, *_) in self.rows(f"PRAGMA table_info({table.base})")] if table.base else []
        names = [(more, name) for more in table.more for name in self._names(more, where)]
        match = " AND ".join(f"{key} = listed.{key}" for key in table.keys)
        chosen = [*(columns or table.keys), *(f"(SELECT value FROM {m} WHERE {match} AND name = ?)" for m, _ in names)]
        sources = [source for source in (table.base, *table.more) if source and not source.endswith("extras")]
        listed = " UNION ".join(f"SELECT DISTINCT {keys} FROM {source}{where}" for source in sources)
        base = f"LEFT JOIN {table.base} USING ({keys})" if table.base else ""
        query = f"SELECT {', '.join(chosen)} FROM ({listed}) AS listed {base} ORDER BY {keys}"
        rows = self.rows(query, *(name for _, name in names))
        return [*(columns or table.keys), *(name for _, name in names)], rows

    def columns(self, table: WideTable, where: str = "") -> dict[str, Column]:
        """The columns of a table by name."""
        names, found = self.wide(table, where)
        rows = list(found)
        lists = zip(*rows, strict=True) if rows else ([] for _ in names)
        return {name: as_column(list(column)) for name, column in zip(names, lists, strict=True)}

    def last_round(self) -> int | None:
        """The last round written, None before the first."""
        return self._one("SELECT max(round) FROM rounds")

    def rounds(self) -> dict[str, Column]:
        """All rounds as columns, in order, with a column for each number that parts add."""
        return self.columns(TABLES["rounds"])

    def column(self, name: str) -> Column:
        """One column of `rounds()`."""
        columns = self.rounds()
        if name not in columns:
            raise UserError(f"{self.path} has no round column {name!r}; {nearest(name, columns)}")
        return columns[name]

    def glossary(self) -> Glossary:
        """Which way each number is better, and its unit."""
        rows = self.rows("SELECT name, higher_is_better, unit FROM metrics ORDER BY place")
        return Glossary({name: MetricInfo(bool(higher), unit) for name, higher, unit in rows})

    def warnings(self) -> list[str]:
        """The warnings from before the first round."""
        return [words for (words,) in self.rows("SELECT words FROM warnings ORDER BY place")]

    def metrics(self) -> list[str]:
        """The names of the metrics that were evaluated."""
        return self._names("evaluations")

    def client_metrics(self) -> list[str]:
        """The names of the metrics that were evaluated for each client."""
        return self._names("client_evaluations")

    def _names(self, table: str, where: str = "") -> list[str]:
        names = [name for (name,) in self.rows(f"SELECT DISTINCT name FROM {table}{where} ORDER BY name")]
        if not all(isinstance(name, str) for name in names):
            raise Damaged(self.path, f"{table}.name has a value that is not text", RESTORE)
        return names

    def curve(self, metric: str) -> tuple[Column, Column]:
        """An evaluated metric, or a column of the rounds, as (rounds, values) without missing values."""
        evaluated = list(self.rows("SELECT round, value FROM evaluations WHERE name = ? ORDER BY round", metric))
        rounds, numbers = zip(*evaluated, strict=True) if evaluated else ((), ())
        columns = {"round": as_column([*rounds]), metric: as_column([*numbers])} if evaluated else self.rounds()
        if metric not in columns:
            raise UserError(f"{self.path} has no metric {metric!r}; {nearest(metric, [*self.metrics(), *columns])}")
        try:
            values = columns[metric].astype(np.float64)
        except ValueError:
            raise UserError(f"{metric!r} in {self.path} is text, not a number; it has no curve") from None
        rounds_T = np.array(columns["round"].tolist(), np.int64)
        return rounds_T[~np.isnan(values)], values[~np.isnan(values)]

    def clients(self, t: int | None = None) -> dict[str, Column]:
        """The rows of the clients, of one round or of all, as columns ordered by round and client.

        Columns without any value are left out, except "round", "client" and "work".
        """
        columns = self.columns(TABLES["clients"], "" if t is None else f" WHERE round = {t:d}")
        keep = {"round", "client", "work"}
        return {n: c for n, c in columns.items() if n in keep or c.dtype != np.float64 or not np.isnan(c).all()}

    def turnout_rows(self, after: int = -1) -> Iterator[tuple[Any, ...]]:
        """(round, client, work) of all clients asked after a round; work is the fraction finished, 0 if absent."""
        query = "SELECT round, client, work FROM clients WHERE round > ? AND work IS NOT NULL ORDER BY round, client"
        return self.rows(query, after)

    def client_evaluation(self, name: str) -> tuple[Column, Column]:
        """(clients, values) of a metric that was evaluated for each client, the latest time."""
        t = self._one("SELECT max(round) FROM client_evaluations WHERE name = ?", name)
        if t is None:
            raise UserError(f"{self.path} has no client metric {name!r}; {nearest(name, self.client_metrics())}")
        query = "SELECT client, value FROM client_evaluations WHERE name = ? AND round = ? ORDER BY client"
        clients, values = zip(*self.rows(query, name, t), strict=True)
        return np.array(clients, np.int64), as_column(list(values)).astype(np.float64)

    def events(self) -> list[tuple[Any, ...]]:
        """(round, client, kind, detail) of every event of the membership, in order."""
        return list(self.rows("SELECT round, client, kind, detail FROM events ORDER BY round, number"))


def _plain(value: Any) -> Any:
    """A numpy number as Python's: SQLite would keep its bytes."""
    return value.item() if isinstance(value, np.generic) else value
