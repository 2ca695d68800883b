"""The records of a run, or of a folder of runs, as files for other programs: CSV or Parquet.

A folder of runs gives the same tables with two columns more, `variant` and `seed`. Rounds are counted from 0; an
evaluation of round -1 is from before training.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.machine.files import replacing
from turnout.machine.optional import optional
from turnout.running.records.export import Kind, kinds_of
from turnout.running.records.finding import FoundRuns, runs_in
from turnout.running.records.records import FILE, Records
from turnout.running.records.schema import TABLES, WideTable

BATCH = 50_000  # rows


def write_csv(folder: Path, to: Path) -> dict[str, int]:
    """Write a CSV file for each table; the rows of each, by the file's name."""
    written = {}
    for name, columns, rows in _tables(folder, to):
        with replacing(to / f"{name}.csv") as temporary, open(temporary, "w", newline="", encoding="utf-8") as out:
            writer, count = csv.writer(out), 0
            writer.writerow(columns)
            for count, row in enumerate(rows, 1):  # noqa: B007
                writer.writerow(row)
        written[f"{name}.csv"] = count
    return written


def write_parquet(folder: Path, to: Path) -> dict[str, int]:
    """Write a Parquet file for each table; the rows of each, by the file's name."""
    arrow = optional("pyarrow", "writing Parquet", "parquet")
    parquet = optional("pyarrow.parquet", "writing Parquet", "parquet")
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    written = {}
    for name, columns, rows in _tables(folder, to):
        schema, count = arrow.schema([(column, types[kind]) for column, kind in columns.items()]), 0
        with replacing(to / f"{name}.parquet") as temporary, parquet.ParquetWriter(temporary, schema) as writer:
            while batch := list(islice(rows, BATCH)):
                arrays = [arrow.array(v, f.type) for v, f in zip(zip(*batch, strict=True), schema, strict=True)]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
                count += len(batch)
        written[f"{name}.parquet"] = count
    return written


def _tables(folder: Path, to: Path) -> Iterator[tuple[str, dict[str, Kind], Iterator[tuple[Any, ...]]]]:
    """(name, columns of all runs together, rows) of the tables that have rows."""
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file, and several tables are written: give a folder")
    found = runs_in(folder)
    to.mkdir(parents=True, exist_ok=True)
    for title, table in TABLES.items():
        columns: dict[str, Kind] = {}
        for run in found.runs:
            with Records.read(run.path / FILE) as records:
                for name, kind in kinds_of(records, table).items():
                    columns[name] = str if str in (kind, columns.get(name)) else kind
        if columns:
            first: dict[str, Kind] = {} if found.single else {"variant": str, "seed": int}
            yield title, first | columns, _rows(table, found, columns)


def _rows(table: WideTable, found: FoundRuns, columns: dict[str, Kind]) -> Iterator[tuple[Any, ...]]:
    """The rows of all runs; a column that holds words in some rows holds words in all."""
    for run in found.runs:
        first: tuple[Any, ...] = () if found.single else (run.variant, run.seed)
        with Records.read(run.path / FILE) as records:
            names, rows = records.wide(table)
            for row in rows:
                values = dict(zip(names, row, strict=True))
                yield first + tuple(
                    str(values[name]) if kind is str and values.get(name) is not None else values.get(name)
                    for name, kind in columns.items()
                )
