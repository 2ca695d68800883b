"""The records of a run, or of a folder of runs, as CSV files for other programs.

A folder of runs gives the same tables with two columns more, `variant` and `seed`. Rounds are counted from 0; an
evaluation of round -1 is from before training.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.machine.files import replacing
from turnout.running.records.finding import runs_in
from turnout.running.records.records import FILE, Records
from turnout.running.records.schema import TABLES


def write_csv(folder: Path, to: Path) -> dict[str, int]:
    """Write a CSV file for each table that has rows; returns how many, by the file's name."""
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file, and several tables are written: give a folder")
    found, written = runs_in(folder), {}
    to.mkdir(parents=True, exist_ok=True)
    for title, table in TABLES.items():
        columns: dict[str, None] = {}
        for run in found.runs:
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
            writer.writerow([*([] if found.single else ["variant", "seed"]), *columns])
            for run in found.runs:
                first: tuple[Any, ...] = () if found.single else (run.variant, run.seed)
                with Records.read(run.path / FILE) as records:
                    names, rows = records.wide(table)
                    for row in rows:
                        values = dict(zip(names, row, strict=True))
                        writer.writerow([*first, *(values.get(name) for name in columns)])
                        count += 1
        written[path.name] = count
    return written
