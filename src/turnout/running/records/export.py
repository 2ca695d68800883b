"""Records for other programs: tables, columns and pandas frames, and the CSV files that a world can replay."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnout.machine.files import replacing
from turnout.machine.optional import optional
from turnout.running.records.records import Records
from turnout.running.records.schema import Column, WideTable
from turnout.types import SILENTLY
from turnout.world.log import write_turnout


def round_columns(records: Records) -> dict[str, Column]:
    """Rounds with their evaluations; round -1 is the evaluation before the first."""
    return records.columns(WideTable(("round",), "rounds", ("extras", "evaluations")))


def client_columns(records: Records) -> dict[str, Column]:
    """All clients asked in a round or measured after it, with their records and measurements."""
    return records.columns(WideTable(("round", "client"), "clients", ("client_extras", "client_evaluations")))


def as_frame(columns: dict[str, Column], keys: Sequence[str]) -> Any:
    """A pandas DataFrame with these keys as its index, without empty columns."""
    pandas = optional("pandas", "run.frame()", "frames")
    return pandas.DataFrame(columns).set_index(list(keys)).dropna(axis="columns", how="all")


def export_turnout(records: Records, path: Path, names: Sequence[str] | None = None) -> Path:
    """Write the observed turnout as the CSV `round,client,work` that `participation` can replay.

    `names`: the clients' names, if the data has them; a log of named clients is read by name.
    """
    rows = ((t, names[client] if names else client, work) for t, client, work in records.turnout_rows())
    with replacing(path) as temporary:
        write_turnout(temporary, rows)
    return path


def export_events(
    records: Records, path: Path, names: Sequence[str] | None = None, outside: Sequence[int] = ()
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
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("round", "client", "event"), *rows])
    return path
