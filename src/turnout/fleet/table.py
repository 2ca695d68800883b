"""A log as blocks of rows: cells of text by column, from a CSV or a Parquet file. Only a block is in memory.

Shape letters: B rows of a block.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.fleet.faults import Faults
from turnout.machine.optional import optional

ROWS = 100_000  # of a block
SEPARATORS = (",", ";", "\t", "|")


@dataclass(frozen=True)
class Block:
    """Some rows: `cells[column]` has a text for each, `line_B` says where each is."""

    cells: dict[str, list[str]]
    line_B: Sequence[int]


@dataclass(frozen=True)
class LogTable:
    """A log file whose header was read."""

    path: Path
    header: list[str]
    separator: str | None  # None: a Parquet file

    @property
    def counted_in(self) -> str:
        return "row" if self.separator is None else "line"

    def blocks(self, columns: Sequence[str], faults: Faults) -> Iterator[Block]:
        """The rows, only the cells of these columns; rows of another length are faults."""
        if self.separator is None:
            yield from self._parquet_blocks(columns)
            return
        try:
            yield from self._csv_blocks(columns, faults)
        except (UnicodeDecodeError, csv.Error) as error:
            raise _no_text(self.path, error) from error

    def _csv_blocks(self, columns: Sequence[str], faults: Faults) -> Iterator[Block]:
        places = [self.header.index(name) for name in columns]
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=self.separator or ",")
            next(reader)
            rows: list[list[str]] = []
            lines: list[int] = []
            line = reader.line_num + 1
            for row in reader:
                if len(row) == len(self.header):
                    rows.append(row)
                    lines.append(line)
                elif any(cell.strip() for cell in row):
                    faults.add("cells", line, f"the header has {len(self.header)} columns, this row has {len(row)}")
                line = reader.line_num + 1
                if len(rows) == ROWS:
                    yield _block(rows, lines, columns, places)
                    rows, lines = [], []
            if rows:
                yield _block(rows, lines, columns, places)

    def _parquet_blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        arrow = optional("pyarrow", "reading Parquet", "parquet")
        first = 1
        with _parquet(self.path) as file:
            for name in columns:
                if arrow.types.is_nested(kind := file.schema_arrow.field(name).type):
                    raise UserError(f"{self.path}: column {name!r} has a {kind} in each row, not one value")
            for batch in file.iter_batches(ROWS, columns=list(columns)):
                cells = {}
                for name in columns:
                    texts = batch.column(batch.schema.get_field_index(name)).cast(arrow.string())
                    cells[name] = ["" if text is None else text for text in texts.to_pylist()]
                yield Block(cells, range(first, first + batch.num_rows))
                first += batch.num_rows


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The file for pyarrow to read; what that cannot read is a UserError."""
    arrow = optional("pyarrow", "reading Parquet", "parquet")
    parquet = optional("pyarrow.parquet", "reading Parquet", "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (arrow.ArrowException, OSError) as error:
        raise UserError(f"{path} begins like a Parquet file, but cannot be read ({error}): write it again") from error


def _block(rows: list[list[str]], lines: list[int], columns: Sequence[str], places: Sequence[int]) -> Block:
    return Block({name: [row[at].strip() for row in rows] for name, at in zip(columns, places, strict=True)}, lines)


def open_table(path: Path, separator: str | None) -> LogTable:
    """The table at a path: Parquet by its first bytes, else CSV, whose separator is the commonest of the header."""
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise UserError(f"cannot read the log {path}: {error.strerror}") from error
    if begins == b"PAR1":
        with _parquet(path) as file:
            return LogTable(path, list(file.schema_arrow.names), None)
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            chosen = separator or max(SEPARATORS, key=first.count)
            header = [name.strip() for name in next(csv.reader([first], delimiter=chosen), [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_text(path, error) from error
    if not any(header):
        raise UserError(f"{path} is empty, or its first line is: that has the names of the columns")
    if twice := [name for i, name in enumerate(header) if name in header[:i]]:
        raise UserError(f"{path} has two columns with the name {twice[0]!r}: rename or remove one of them")
    return LogTable(path, header, chosen)


def _no_text(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is neither a CSV text in UTF-8 ({error}) nor a Parquet file: convert it first")
