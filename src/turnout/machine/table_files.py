"""Tables in files, as columns of text: CSV in every install; Parquet where pyarrow is installed.

    table = open_table(Path("log.csv"))            # reads the header only
    for block in table.blocks(["client", "round"]):
        block.cells["client"], block.line_B        # 100,000 rows at most are in memory

Shape letters: B rows of a block.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.errors import UserError, optional

BLOCK_ROWS = 100_000
SEPARATORS = (",", ";", "\t", "|")
PARQUET = b"PAR1"  # the first bytes of such a file


@dataclass(frozen=True)
class TableBlock:
    """Some rows of a table.

    cells    for each column its cells as text; "" where a Parquet file has no value
    line_B   where each row begins in the file: the line of a CSV, the row of a Parquet file, counted from 1
    """

    cells: dict[str, list[str]]
    line_B: Sequence[int]


@dataclass(frozen=True)
class TableFile:
    """A table whose header has been read, and no row yet.

    path        the file
    header      the names of its columns, in the order of the file
    separator   the character between the cells of a CSV; None for a Parquet file
    """

    path: Path
    header: list[str]
    separator: str | None

    @property
    def counted_in(self) -> str:
        """What `line_B` counts, for messages: "line" or "row"."""
        return "line" if self.separator else "row"

    def place(self, line: int, column: str | None = None) -> str:
        """Where a cell or a row is, for messages: 't.csv, line 3, column 'age''."""
        return f"{self.path}, {self.counted_in} {line}" + (f", column {column!r}" if column is not None else "")

    def blocks(
        self,
        columns: Sequence[str] | None = None,
        bad_row: Callable[[int, str], None] | None = None,
        strip: bool = True,
    ) -> Iterator[TableBlock]:
        """The rows in blocks; None reads all columns, `strip` removes blanks around cells.

        A row with too many or too few cells is a UserError, or is given to `bad_row` as its line and what is wrong with
        it, and left out. A row without content is left out.
        """
        names = self.header if columns is None else columns
        for block in self._csv_blocks(names, bad_row) if self.separator else self._parquet_blocks(names):
            if strip:
                stripped = {name: list(map(str.strip, cells)) for name, cells in block.cells.items()}
            yield TableBlock(stripped, block.line_B) if strip else block

    def read(self, columns: Sequence[str] | None = None, strip: bool = True) -> TableBlock:
        cells: dict[str, list[str]] = {name: [] for name in self.header if columns is None or name in columns}
        lines: list[int] = []
        for block in self.blocks(columns, strip=strip):
            lines.extend(block.line_B)
            for name in cells:
                cells[name].extend(block.cells[name])
        return TableBlock(cells, lines)

    def _csv_blocks(self, columns: Sequence[str], bad_row: Callable[[int, str], None] | None) -> Iterator[TableBlock]:
        rows: list[list[str]] = []
        lines: list[int] = []

        def block() -> TableBlock:
            return TableBlock({n: [row[i] for row in rows] for i, n in enumerate(self.header) if n in columns}, lines)

        with _csv_rows(self.path, self.separator) as (reader, _):
            next(reader)
            line = reader.line_num + 1
            for row in reader:
                if len(row) == len(self.header):
                    rows.append(row)
                    lines.append(line)
                elif any(cell.strip() for cell in row):
                    words = f"the header has {len(self.header)} columns, this row has {len(row)}"
                    if bad_row is None:
                        raise UserError(f"{self.place(line)}: {words}; correct the row")
                    bad_row(line, words)
                line = reader.line_num + 1
                if len(rows) == BLOCK_ROWS:
                    yield block()
                    rows, lines = [], []
            if rows:
                yield block()

    def _parquet_blocks(self, columns: Sequence[str]) -> Iterator[TableBlock]:
        first = 1
        with _arrow(self.path) as (arrow, data):
            for name in columns:
                if arrow.types.is_nested(kind := data.schema.field(name).type):
                    raise UserError(f"{self.path}: column {name!r} has a {kind} in each row, not one value")
            for batch in data.to_batches(columns=list(columns), batch_size=BLOCK_ROWS, use_threads=False):
                cells = {name: batch.column(i).cast(arrow.string()).to_pylist() for i, name in enumerate(columns)}
                texts = {name: ["" if cell is None else cell for cell in column] for name, column in cells.items()}
                yield TableBlock(texts, range(first, first + batch.num_rows))
                first += batch.num_rows


def open_table(path: Path, separator: str | None = None) -> TableFile:
    """A table file with its header. A file is Parquet if it begins like one; else it is a CSV with one line of names.

    `separator` is the character between the cells of a CSV; without it, the most frequent one of the first line among
    comma, semicolon, tab and |. Errors name the file and say what to do.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "t.csv")
    ...     _ = path.write_text("client;age\\nann; 30\\n\\nbob;40\\n")
    ...     open_table(path).read()
    TableBlock(cells={'client': ['ann', 'bob'], 'age': ['30', '40']}, line_B=[2, 4])
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(4) == PARQUET
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if is_parquet:
        with _arrow(path) as (_, data):
            table = TableFile(path, list(data.schema.names), None)
    else:
        with _csv_rows(path, separator) as (reader, chosen):
            table = TableFile(path, [name.strip() for name in next(reader, [])], chosen)
    if not any(table.header):
        raise UserError(f"{path} is empty, or its first line is: it must have the names of the columns")
    if twice := [name for i, name in enumerate(table.header) if name in table.header[:i]]:
        raise UserError(f"{path} has two columns with the name {twice[0]!r}: rename or remove one of them")
    return table


@contextmanager
def _csv_rows(path: Path, separator: str | None) -> Iterator[tuple[Any, str]]:
    """A reader of all rows with the header, and the separator."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a text may be longer than the default limit of 128 KiB
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            chosen = separator or max(SEPARATORS, key=first.count)
            yield csv.reader(file, delimiter=chosen), chosen
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} is neither a CSV text in UTF-8 ({error}) nor a Parquet file: convert it first"
        ) from error


@contextmanager
def _arrow(path: Path) -> Iterator[tuple[Any, Any]]:
    """Pyarrow, and the file as one of its data sets; a file that it cannot read is a UserError."""
    arrow, dataset = (optional(m, "reading Parquet files", "parquet") for m in ("pyarrow", "pyarrow.dataset"))
    try:
        yield arrow, dataset.dataset(path, format="parquet")
    except (arrow.ArrowException, OSError) as error:
        raise UserError(f"{path} begins like a Parquet file, but cannot be read ({error}): write it again") from error
