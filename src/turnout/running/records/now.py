"""Who is at work now: one row of the records that says whom the round that goes on has asked.

It is for who looks on while a run goes on; nothing of it is left when the run has ended, and no comparison of records
looks at it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from turnout.running.records.records import Records
from turnout.running.records.schema import transaction

MOST = 1000  # clients that are named
_TABLE = """
CREATE TABLE IF NOT EXISTS now (place INTEGER PRIMARY KEY, round INTEGER, at REAL, asked INTEGER, clients TEXT)
"""


class AtWork(NamedTuple):
    """Whom a round has asked, and when (seconds since the epoch); of many, `clients` are the first."""

    round: int
    at: float
    asked: int
    clients: list[int]


def keep_now(records: Records, t: int, clients: Sequence[int]) -> None:
    """Keep whom the round that goes on has asked."""
    with transaction(records.db, records.path, "who is at work"):
        records.db.execute(_TABLE)
        row = (0, t, time.time(), len(clients), json.dumps(list(clients[:MOST])))
        records.db.execute("INSERT OR REPLACE INTO now VALUES (?,?,?,?,?)", row)


def end_now(records: Records) -> None:
    """Nobody is at work any more."""
    with transaction(records.db, records.path, "that nobody is at work"):
        records.db.execute("DROP TABLE IF EXISTS now")


def read_now(records: Records) -> AtWork | None:
    """Who is at work, as last said; None where no round goes on, or none has said it."""
    if records.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'now'").fetchone() is None:
        return None
    row = records.db.execute("SELECT round, at, asked, clients FROM now").fetchone()
    return None if row is None else AtWork(row[0], row[1], row[2], json.loads(row[3]))
