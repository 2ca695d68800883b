"""A deployment's devices: present, working, last seen; from the records of its run.

They are in the table `devices` where the server of the deployment keeps one; else they follow from the rounds: when
each last answered, which have left, which are asked now.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from turnout.running.charts.units import duration
from turnout.running.records.now import read_now
from turnout.running.records.records import Records
from turnout.running.state import RECORDS

MOST = 500


class Device(NamedTuple):
    """A device in the list.

    client  its number
    name    of its client
    state   "working", "present", "absent", "left"
    seen    when it last answered, in words
    """

    client: int
    name: str
    state: str
    seen: str


def is_deployment(settings: dict[str, object]) -> bool:
    """Whether an experiment's clients are real devices."""
    runtime = settings.get("runtime")
    return isinstance(runtime, dict) and runtime.get("kind") == "flower"


def devices_of(folder: Path, running: bool) -> list[Device]:
    """The devices of a run, those at work first."""
    with Records.read(folder / RECORDS) as records:
        kept = records.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'devices'").fetchone()
        found = _kept(records) if kept else _seen_in_rounds(records, running)
    order = ("working", "present", "absent", "left")
    return sorted(found, key=lambda d: (order.index(d.state) if d.state in order else len(order), d.client))[:MOST]


def _kept(records: Records) -> list[Device]:
    found = []
    for client, name, state, seen in records.db.execute("SELECT client, name, state, seen FROM devices"):
        ago = "never" if seen is None else f"{duration(max(0.0, time.time() - seen))} ago"
        found.append(Device(client, name or f"client {client}", state, ago))
    return found


def _seen_in_rounds(records: Records, running: bool) -> list[Device]:
    last, now, events = records.last_round(), read_now(records) if running else None, records.events()
    working: Sequence[int] = now.clients if now else ()
    left = {client for _, client, kind, _ in events if kind in ("leave", "drop")}
    left -= {client for t, client, kind, _ in events if kind == "join" and t == last}
    query = "SELECT client, max(CASE WHEN work > 0 THEN round END) FROM clients GROUP BY client"
    found = {client: Device(client, f"client {client}", "working", "now") for client in working}
    for client, seen in records.db.execute(query):
        state = "left" if client in left else "present" if seen == last else "absent"
        state = "working" if client in working else state
        found[client] = Device(client, f"client {client}", state, "never" if seen is None else f"round {seen}")
    return list(found.values())
