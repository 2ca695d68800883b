"""What a run saw of its clients, as the CSV files that a world can replay: who was there, who joined and left."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from turnout.machine.files import replacing
from turnout.running.records.records import Records
from turnout.types import SILENTLY
from turnout.world.log import write_turnout


def export_turnout(records: Records, path: str | Path, names: Sequence[str] | None = None) -> Path:
    """Write the observed turnout as the CSV `round,client,work` that `participation` can replay.

    `names`: what clients are called, where the data says; a log of named clients is read by name.
    """
    path, rows = Path(path), records.turnout_rows()
    named = ((t, names[int(client)], work) for t, client, work in rows) if names else rows
    with replacing(path) as temporary:
        write_turnout(temporary, named)
    return path


def export_events(
    records: Records, path: str | Path, names: Sequence[str] | None = None, outside: Sequence[int] = ()
) -> Path | None:
    """Write who joined and left as the CSV `round,client,event` that an `EventLog` reads; None where nobody did.

    `outside`: clients that never were members.
    What the rules decided themselves (a client that was dropped, and joined again by itself) they decide again.
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
