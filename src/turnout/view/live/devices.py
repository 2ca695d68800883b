"""A deployment's devices: present, working, last seen; from the records of its run.

Where the server of a deployment keeps the table `devices`, that says it. Else it follows from the rounds: who answered
last when, who has left, who is asked now.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from turnout.running.records.records import Records, read_now
from turnout.running.state import RECORDS
from turnout.view.report.units import duration

MOST = 500


class Device(NamedTuple):
    """A device in the list: whose it is, how it is, when it was last heard of, in words."""

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
    rows = records.db.execute("SELECT client, name, state, seen FROM devices")
    return [Device(client, name or f"client {client}", state, _ago(seen)) for client, name, state, seen in rows]


def _seen_in_rounds(records: Records, running: bool) -> list[Device]:
    last, now = records.last_round(), read_now(records) if running else None
    working: Sequence[int] = now.clients if now else ()
    left = {client for _, client, kind, _ in records.events() if kind in ("leave", "drop")}
    left -= {client for t, client, kind, _ in records.events() if kind == "join" and t == last}
    query = "SELECT client, max(CASE WHEN work > 0 THEN round END) FROM clients GROUP BY client"
    found = []
    for client, seen in records.db.execute(query):
        state = "left" if client in left else "present" if seen == last else "absent"
        state = "working" if client in working else state
        words = "never" if seen is None else f"round {seen}"
        found.append(Device(client, f"client {client}", state, words))
    known = {device.client for device in found}
    return found + [Device(c, f"client {c}", "working", "now") for c in working if c not in known]


def _ago(seen: float | None) -> str:
    return "never" if seen is None else f"{duration(max(0.0, time.time() - seen))} ago"
