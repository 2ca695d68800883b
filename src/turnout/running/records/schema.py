"""The tables of `records.sqlite`, and how such a file is opened, written and read safely."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.errors import UserError, out_of_memory

Column = NDArray[Any]

APPLICATION = 0x5455524E  # "TURN": marks the file as ours
VERSION = 1
RESTORE = (
    "restore it from a copy, or use a new folder; the trained model is in checkpoint.safetensors (turnout export "
    "--model)"
)
SCHEMA = """
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, skipped TEXT, clock INTEGER, lr REAL, members INTEGER, asked INTEGER,
    answered INTEGER, counted INTEGER, work REAL, weight_sum REAL, weight_max REAL, train_loss REAL,
    bytes_up INTEGER, bytes_down INTEGER, seconds REAL);
CREATE TABLE extras (round INTEGER, name TEXT, value, PRIMARY KEY (round, name)) WITHOUT ROWID;
CREATE TABLE clients (
    round INTEGER, client INTEGER, work REAL, share REAL, weight REAL, loss REAL, examples INTEGER,
    bytes_up INTEGER, bytes_down INTEGER, seconds REAL, friend INTEGER,
    PRIMARY KEY (round, client)) WITHOUT ROWID;
CREATE TABLE client_extras (
    round INTEGER, name TEXT, client INTEGER, value, PRIMARY KEY (round, name, client)) WITHOUT ROWID;
CREATE TABLE evaluations (round INTEGER, name TEXT, value REAL, PRIMARY KEY (round, name)) WITHOUT ROWID;
CREATE TABLE client_evaluations (
    round INTEGER, name TEXT, client INTEGER, value REAL, PRIMARY KEY (round, name, client)) WITHOUT ROWID;
CREATE TABLE events (
    round INTEGER, number INTEGER, client INTEGER, kind TEXT, detail TEXT,
    PRIMARY KEY (round, number)) WITHOUT ROWID;
"""
# What the task knows of its metrics, in its order. Older folders have no such table.
METRICS = """
CREATE TABLE IF NOT EXISTS metrics (
    place INTEGER PRIMARY KEY, name TEXT, higher_is_better INTEGER, unit TEXT)
"""
# Warnings from before the first round, a sentence each. Older folders have no such table.
WARNINGS = "CREATE TABLE IF NOT EXISTS warnings (place INTEGER PRIMARY KEY, words TEXT)"
# The checksum of a round's rows in all tables. Older folders have no such table.
SUMS = "CREATE TABLE IF NOT EXISTS sums (round INTEGER PRIMARY KEY, digest TEXT)"
KEYS = {
    "rounds": ("round",),
    "extras": ("round", "name"),
    "clients": ("round", "client"),
    "client_extras": ("round", "name", "client"),
    "evaluations": ("round", "name"),
    "client_evaluations": ("round", "name", "client"),
    "events": ("round", "number"),
}
CLIENT_COLUMNS = (
    "work", "share", "weight", "loss", "examples", "bytes_up", "bytes_down", "seconds", "friend"
)  # fmt: skip


class RecordCursor(sqlite3.Cursor):
    """A cursor whose errors are sentences that name the file."""

    def execute(self, *arguments: Any) -> RecordCursor:
        with _explained(self.connection):
            super().execute(*arguments)
        return self

    def executemany(self, *arguments: Any) -> RecordCursor:
        with _explained(self.connection):
            super().executemany(*arguments)
        return self

    def fetchone(self) -> Any:
        with _explained(self.connection):
            return super().fetchone()

    def fetchall(self) -> list[Any]:
        with _explained(self.connection):
            return super().fetchall()

    def __next__(self) -> Any:
        with _explained(self.connection):
            return super().__next__()


class Database(sqlite3.Connection):
    """A connection with its file's path, for messages."""

    path = Path("records.sqlite")

    def cursor(self, *_: Any) -> RecordCursor:  # type: ignore[override]
        return super().cursor(RecordCursor)

    def execute(self, *arguments: Any) -> RecordCursor:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> RecordCursor:
        return self.cursor().executemany(*arguments)


def connected(path: Path, uri: str | None = None) -> Database:
    """Open a database, or one that is named by a URI."""
    with _explained(path):
        db = sqlite3.connect(uri or path, uri=uri is not None, isolation_level=None, timeout=30, factory=Database)
    db.path = path
    return db


@contextmanager
def _explained(where: Any) -> Iterator[None]:
    """Raise an error of the database as a sentence; `transaction` explains rows that are written twice."""
    path = getattr(where, "path", where)
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        words = str(error)
        if "full" in words or "I/O" in words:
            sentence = f"{path} cannot be written ({words}): free some space or repair the disk, then use --resume"
        elif "locked" in words or "busy" in words:
            sentence = f"{path} is in use by another process ({words}): wait for it, or stop it first"
        elif "readonly" in words or "unable to open" in words:
            sentence = f"{path} cannot be opened ({words}): may you write to the folder?"
        else:
            sentence = f"{path} is damaged and cannot be read as run records ({words}): {RESTORE}"
        raise UserError(out_of_memory(error) or sentence) from error


@contextmanager
def transaction(db: Database, path: Path, what: str) -> Iterator[None]:
    """All or nothing; rows that exist already mean that later rounds were not cut before resuming."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException as error:
        with suppress(sqlite3.Error, UserError):  # a full disk has undone it already
            db.execute("ROLLBACK")
        if isinstance(error, sqlite3.IntegrityError):
            raise UserError(
                f"{what} is already in {path} (or names a client twice); "
                "resuming cuts the later rounds first, a new run needs a new folder"
            ) from error
        raise
    db.execute("COMMIT")


def checked(db: Database, path: Path, create: bool) -> Database:
    """The connection, if its file holds records of this version; otherwise closes it and raises."""
    try:
        application, version, tables = (
            db.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if create and not tables:
            db.execute("PRAGMA journal_mode = WAL")
            marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            with _explained(path):
                db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {marks} COMMIT;")
        elif application != APPLICATION:
            raise UserError(f"{path} is not the records of a run (a database of something else, or empty)")
        elif version != VERSION:
            raise UserError(
                f"{path} has records of version {version}, this Turnout reads version {VERSION}; "
                "use the Turnout that wrote it, or run the experiment again"
            )
        db.execute("PRAGMA synchronous = NORMAL")  # survives a kill; with `Records.sync` also a power cut
    except UserError:
        db.close()
        raise
    return db


def as_column(values: list[Any]) -> Column:
    """Integers without gaps as int64, other numbers as float64 with NaN for NULL, text as objects.

    >>> as_column([1, None]), as_column([1, 2]), as_column(["a", None])
    (array([ 1., nan]), array([1, 2]), array(['a', None], dtype=object))
    """
    if any(isinstance(v, str) for v in values):
        return np.array(values, dtype=object)
    if values and all(type(v) is int for v in values):
        return np.array(values, dtype=np.int64)
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
