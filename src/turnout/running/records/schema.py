"""The tables of `records.sqlite`, and how such a file is opened, written and read safely."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnout.errors import UserError, out_of_memory
from turnout.machine.lock import has_locks

Column = NDArray[Any]

# Where locks fail, nolock=1 is not enough: SQLite still asks for one if a killed writer has left its journal.
NO_LOCKS = "vfs=unix-none" if os.name == "posix" else "nolock=1"
APPLICATION = 0x5455524E  # "TURN": marks the file as ours
VERSION = 1
RESTORE = (
    "restore it from a copy, or use a new folder; the trained model is in checkpoint.safetensors (turnout export "
    "--model)"
)
# metrics: what the task knows of its metrics, in its order; warnings: sentences from before the first round;
# sums: the checksum of a round's rows in all tables of KEYS
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
CREATE TABLE metrics (place INTEGER PRIMARY KEY, name TEXT, higher_is_better INTEGER, unit TEXT);
CREATE TABLE warnings (place INTEGER PRIMARY KEY, words TEXT);
CREATE TABLE sums (round INTEGER PRIMARY KEY, digest TEXT);
"""
KINDS = {"INTEGER": ("integer",), "REAL": ("real", "integer"), "TEXT": ("text",), "": ("real", "integer", "text")}
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


class WideTable(NamedTuple):
    """Rows as a reader wants them: one per key, with a column for each recorded name.

    keys  the columns that identify a row
    base  the table with the other columns, if there is one
    more  tables of (key, name, value), whose names become columns
    """

    keys: tuple[str, ...]
    base: str | None
    more: tuple[str, ...] = ()


TABLES = {
    "rounds": WideTable(("round",), "rounds", ("extras",)),
    "clients": WideTable(("round", "client"), "clients", ("client_extras",)),
    "evaluations": WideTable(("round",), None, ("evaluations",)),
    "client_evaluations": WideTable(("round", "client"), None, ("client_evaluations",)),
    "events": WideTable(("round", "number"), "events"),
}


def connect(path: Path, create: bool) -> sqlite3.Connection:
    """Open a file of records to write (`create`: it need not exist) or to read, while a run may be writing.

    Without locks the writer, which holds the folder, uses no WAL file, and readers do not wait for it.
    """
    uri = path.absolute().as_uri()
    writable = create or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    with explained(path):
        locks = not writable or has_locks(path.parent.absolute())
        if create:
            mode = "mode=rwc" if locks else f"mode=rwc&{NO_LOCKS}"
        elif writable and locks:
            mode = "mode=rw"  # readers of a WAL file share two files beside it, which they write
        else:
            mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "immutable=1"
        db = sqlite3.connect(f"{uri}?{mode}", uri=True, isolation_level=None, timeout=30)
        try:
            if create and not locks:
                db.execute("PRAGMA locking_mode = EXCLUSIVE")  # a WAL file from elsewhere can be read
                db.execute("PRAGMA journal_mode = DELETE")
            _check(db, path, create, locks)
        except BaseException:
            db.close()
            raise
    return db


def _check(db: sqlite3.Connection, path: Path, create: bool, locks: bool) -> None:
    """Create the tables of a new file; refuse one that does not hold records of this version."""
    application, version, tables = (
        db.execute(query).fetchone()[0]
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if create and not tables:
        if locks:
            db.execute("PRAGMA journal_mode = WAL")
        marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
        db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {marks} COMMIT;")
    elif application != APPLICATION:
        raise UserError(f"{path} is not the records of a run (a database of something else, or empty)")
    elif version != VERSION:
        raise UserError(
            f"{path} has records of version {version}, this Turnout reads version {VERSION}; "
            "use the Turnout that wrote it, or run the experiment again"
        )
    db.execute("PRAGMA synchronous = NORMAL")  # survives a kill; with `Records.sync` also a power cut
    if not create:
        db.execute("PRAGMA query_only = ON")


def odd_value(db: sqlite3.Connection, everywhere: bool) -> str | None:
    """Where a column holds a value of another kind than it should, such as a text among numbers; None: nowhere.

    everywhere  also in tables with a row for each client, which takes longer
    """
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(SCHEMA)
        tables = [name for (name,) in ours.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {table: ours.execute(f"PRAGMA table_info({table})").fetchall() for table in tables}
    for table, described in columns.items():
        if "client" in table and not everywhere:
            continue
        kinds = {name: (*KINDS[kind], "null") for _, name, kind, *_ in described}
        is_odd = {name: f"typeof({name}) NOT IN {kinds[name]}" for name in kinds}
        if db.execute(f"SELECT 1 FROM {table} WHERE {' OR '.join(is_odd.values())} LIMIT 1").fetchone():
            name = next(n for n, odd in is_odd.items() if db.execute(f"SELECT 1 FROM {table} WHERE {odd}").fetchone())
            return f"{table}.{name} has a value that is not {' or '.join(kinds[name])}"
    return None


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise an error of the database as a sentence that names the file."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        words = str(error)
        sentence = f"{path} is damaged and cannot be read as run records ({words}): {RESTORE}"
        if any(sign in words for sign in ("full", "I/O", "locked", "busy", "readonly", "unable to open")):
            sentence = f"{path} cannot be used ({words}): is the disk full, or the folder in use or not writable?"
        raise UserError(out_of_memory(error) or sentence) from error


@contextmanager
def transaction(db: sqlite3.Connection, path: Path, what: str) -> Iterator[None]:
    """All or nothing; rows that exist already mean that later rounds were not cut before resuming."""
    with explained(path):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):  # a full disk has undone it already
                db.execute("ROLLBACK")
            if isinstance(error, sqlite3.IntegrityError):
                raise UserError(
                    f"{what} is already in {path} (or names a client twice); "
                    "resuming cuts the later rounds first, a new run needs a new folder"
                ) from error
            raise


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
