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
from turnout.running.records.export import TABLES
from turnout.running.records.finding import runs_in
from turnout.running.records.records import Records
from turnout.running.records.runs import FILE


def write_csv(folder: Path, to: Path) -> dict[str, int]:
    """Write a CSV file for each table that has rows; returns how many, by the file's name."""
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file, and several tables are written: give a folder")
    found, written = runs_in(folder), {}
    to.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        columns: dict[str, Any] = {}
        for run in found.runs:
            with Records.read(run.path / FILE) as records:
                columns |= dict.fromkeys(table.columns(records))
        if not columns:
            continue
        path, count = to / f"{table.name}.csv", 0
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow([*([] if found.single else ["variant", "seed"]), *columns])
            for run in found.runs:
                first: tuple[Any, ...] = () if found.single else (run.variant, run.seed)
                with Records.read(run.path / FILE) as records:
                    for row in table.rows(records, list(columns)):
                        writer.writerow(first + row)
                        count += 1
        written[path.name] = count
    return written
