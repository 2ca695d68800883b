"""Records for other programs: columns, pandas frames, CSV files of all tables, and those that a world can replay."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnout.errors import UserError, optional
from turnout.machine.files import replacing
from turnout.running.records.finding import runs_in
from turnout.running.records.records import FILE, Records
from turnout.running.records.schema import TABLES, Column, WideTable
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


def write_csv(folder: Path, to: Path) -> dict[str, int]:
    """Write the records of a run, or of a folder of runs, as a CSV file for each table; returns rows by file name.

    A folder of runs gives two columns more, `variant` and `seed`. Rounds are counted from 0; an evaluation of round -1
    is from before training.
    """
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file, and several tables are written: give a folder")
    several, written = runs_in(folder), {}
    to.mkdir(parents=True, exist_ok=True)
    for title, table in TABLES.items():
        columns: dict[str, None] = {}
        for run in several.runs:
            with Records.read(run.path / FILE) as records:
                names, rows = records.wide(table)
                if next(rows, None) is not None:
                    columns |= dict.fromkeys(names)
                rows.close()
        columns.pop("number", None)  # of events in a round: their order tells it
        if not columns:
            continue
        path, count = to / f"{title}.csv", 0
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow([*([] if several.single else ["variant", "seed"]), *columns])
            for run in several.runs:
                first: tuple[Any, ...] = () if several.single else (run.variant, run.seed)
                with Records.read(run.path / FILE) as records:
                    names, rows = records.wide(table)
                    for row in rows:
                        values = dict(zip(names, row, strict=True))
                        writer.writerow([*first, *(values.get(name) for name in columns)])
                        count += 1
        written[path.name] = count
    return written
