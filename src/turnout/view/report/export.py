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
from turnout.running.records.export import TABLES, Kind, RecordTable, Row
from turnout.running.records.records import Records
from turnout.view.report.finding import FoundRun, runs_in
from turnout.view.report.runs import FILE

BATCH = 50_000  # rows


def write_csv(folder: Path, to: Path) -> dict[str, int]:
    """Write a CSV file for each table; the rows of each, by the file's name."""
    written = {}
    for table, runs, columns in _tables(folder, to):
        with (
            replacing(to / f"{table.name}.csv") as temporary,
            open(temporary, "w", newline="", encoding="utf-8") as out,
        ):
            writer = csv.writer(out)
            writer.writerow(columns)
            count = 0
            for row in _rows(table, runs, columns):
                writer.writerow(row)
                count += 1
        written[f"{table.name}.csv"] = count
    return written


def write_parquet(folder: Path, to: Path) -> dict[str, int]:
    """Write a Parquet file for each table; the rows of each, by the file's name."""
    arrow = optional("pyarrow", "writing Parquet", "parquet")
    parquet = optional("pyarrow.parquet", "writing Parquet", "parquet")
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    written = {}
    for table, runs, columns in _tables(folder, to):
        schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
        count, rows = 0, _rows(table, runs, columns)
        with replacing(to / f"{table.name}.parquet") as temporary, parquet.ParquetWriter(temporary, schema) as writer:
            while batch := list(islice(rows, BATCH)):
                arrays = [arrow.array(v, f.type) for v, f in zip(zip(*batch, strict=True), schema, strict=True)]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
                count += len(batch)
        written[f"{table.name}.parquet"] = count
    return written


def _tables(folder: Path, to: Path) -> Iterator[tuple[RecordTable, list[FoundRun], dict[str, Kind]]]:
    """The tables that have rows, with the columns of all runs together."""
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file, and several tables are written: give a folder")
    found = runs_in(folder)
    to.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        columns: dict[str, Kind] = {}
        for run in found.runs:
            with Records.read(run.path / FILE) as records:
                for name, kind in table.columns(records).items():
                    columns[name] = str if str in (kind, columns.get(name)) else kind
        if columns:
            yield table, found.runs, ({} if found.single else {"variant": str, "seed": int}) | columns


def _rows(table: RecordTable, runs: list[FoundRun], columns: dict[str, Kind]) -> Iterator[Row]:
    several = "variant" in columns
    own = list(columns)[2 if several else 0 :]
    texts = [name for name in own if columns[name] is str]
    for run in runs:
        first: tuple[Any, ...] = (run.variant, run.seed) if several else ()
        with Records.read(run.path / FILE) as records:
            for row in table.rows(records, own):
                yield first + (_as_text(row, own, texts) if texts else row)


def _as_text(row: Row, names: list[str], texts: list[str]) -> Row:
    """A column that holds words in some rows holds words in all."""
    return tuple(str(v) if v is not None and n in texts else v for n, v in zip(names, row, strict=True))
