"""Tables in files, as columns of text: CSV and SQLite in every install; Parquet, JSON, JSON lines and DuckDB where
duckdb is installed.

    table = open_table(Path("log.csv"))            # reads the header only
    for block in table.blocks(["client", "round"]):
        block.cells["client"], block.line_B        # 100,000 rows at most are in memory

Shape letters: B rows of a block.
"""

from __future__ import annotations

import csv
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnout.errors import UserError, nearest, optional

Format = Literal["CSV", "Parquet", "JSON", "SQLite", "DuckDB"]
BLOCK_ROWS = 100_000
SEPARATORS = (",", ";", "\t", "|")


@dataclass(frozen=True)
class TableBlock:
    """Some rows of a table.

    cells    for each column its cells as text; "" where there is no value
    line_B   where each row begins in the file: the line of a CSV, the row of another file, counted from 1
    """

    cells: dict[str, list[str]]
    line_B: Sequence[int]


@dataclass(frozen=True)
class TableFile:
    """A table whose header has been read, and no row yet.

    path        the file
    header      the names of its columns, in the order of the file
    separator   the character between the cells of a CSV; None for another file
    format      of the file
    table       which table of a database
    """

    path: Path
    header: list[str]
    separator: str | None
    format: Format = "CSV"
    table: str | None = None

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
        if self.format == "CSV":
            blocks = self._csv_blocks(names, bad_row)
        else:
            blocks = self._sqlite_blocks(names) if self.format == "SQLite" else self._duckdb_blocks(names)
        for block in blocks:
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

    def rows(self, types: Mapping[str, str] | None = None) -> str:
        """The rows, as what a query of DuckDB's selects from; `types` are those of a CSV's columns."""
        if self.format == "CSV":
            columns = ", ".join(f"{quoted_text(name)}: '{kind}'" for name, kind in (types or {}).items())
            options = (
                f"columns = {{{columns}}}, delim = {quoted_text(self.separator or '')}, quote = '\"', escape = '\"'"
            )
            return f"read_csv({quoted_text(self.path)}, auto_detect = false, header = true, {options})"
        if self.format == "DuckDB":
            return f"file.{quoted_name(self.table or '')}"
        return f"read_{self.format.lower()}({quoted_text(self.path)})"

    @contextmanager
    def in_duckdb(self, types: Mapping[str, str] | None = None) -> Iterator[tuple[Any, dict[str, str]]]:
        """DuckDB with this file, where `rows` can be selected from, and the type of each column."""
        with _duckdb(self.path, self.format) as database:
            if self.format == "DuckDB":
                database.execute(f"ATTACH {quoted_text(self.path)} AS file (READ_ONLY)")
            yield database, _types(database, self.rows(types))

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

    def _sqlite_blocks(self, columns: Sequence[str]) -> Iterator[TableBlock]:
        texts = ", ".join(f"coalesce(CAST({quoted_name(name)} AS TEXT), '')" for name in columns)
        with _sqlite(self.path) as database:
            yield from _in_blocks(columns, database.execute(f"SELECT {texts} FROM {quoted_name(self.table or '')}"))

    def _duckdb_blocks(self, columns: Sequence[str]) -> Iterator[TableBlock]:
        texts = ", ".join(f"coalesce(CAST({quoted_name(name)} AS VARCHAR), '')" for name in columns)
        with self.in_duckdb() as (database, types):
            for name in columns:
                if any(word in types[name] for word in ("STRUCT", "[]", "MAP", "JSON")):
                    raise UserError(f"{self.path}: column {name!r} has a {types[name]} in each row, not one value")
            yield from _in_blocks(columns, database.execute(f"SELECT {texts} FROM {self.rows()}"))


def _in_blocks(columns: Sequence[str], cursor: Any) -> Iterator[TableBlock]:
    first = 1
    while found := cursor.fetchmany(BLOCK_ROWS):
        cells = dict(zip(columns, map(list, zip(*found, strict=True)), strict=True))
        yield TableBlock(cells, range(first, first + len(found)))
        first += len(found)


def open_table(path: Path, separator: str | None = None, table: str | None = None) -> TableFile:
    """A table file with its header, by how the file begins; what is not another format is a CSV with a line of names.

    `separator` is the character between the cells of a CSV; without it, the most frequent one of the first line among
    comma, semicolon, tab and |. `table` is that of a database that has several. Errors name the file and what to do.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "t.csv")
    ...     _ = path.write_text("client;age\\nann; 30\\n\\nbob;40\\n")
    ...     open_table(path).read()
    TableBlock(cells={'client': ['ann', 'bob'], 'age': ['30', '40']}, line_B=[2, 4])
    """
    try:
        with path.open("rb") as file:
            begins = file.read(4096)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    form = _format(begins)
    if form == "CSV":
        with _csv_rows(path, separator) as (reader, chosen):
            found = TableFile(path, [name.strip() for name in next(reader, [])], chosen)
    elif form == "SQLite":
        with _sqlite(path) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            name = _chosen(path, table, tables)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({quoted_name(name)})")]
        found = TableFile(path, columns, None, form, name)
    else:
        with _duckdb(path, form) as database:
            name = None
            if form == "DuckDB":
                database.execute(f"ATTACH {quoted_text(path)} AS file (READ_ONLY)")
                listed = database.execute(
                    "SELECT table_name FROM duckdb_tables() WHERE database_name = 'file'"
                ).fetchall()
                name = _chosen(path, table, [found for (found,) in listed])
            columns = list(_types(database, TableFile(path, [], None, form, name).rows()))
        found = TableFile(path, columns, None, form, name)
    if not any(found.header):
        raise UserError(f"{path} is empty, or its first line is: it must have the names of the columns")
    if twice := [name for i, name in enumerate(found.header) if name in found.header[:i]]:
        raise UserError(f"{path} has two columns with the name {twice[0]!r}: rename or remove one of them")
    return found


def _format(begins: bytes) -> Format:
    """The format of a file that begins like this.

    >>> _format(b"PAR1..."), _format(b" [{"), _format(b"round,client")
    ('Parquet', 'JSON', 'CSV')
    """
    if begins[:4] == b"PAR1":
        return "Parquet"
    if begins[:16] == b"SQLite format 3\0":
        return "SQLite"
    if begins[8:12] == b"DUCK":
        return "DuckDB"
    return "JSON" if begins.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[") else "CSV"


def _chosen(path: Path, table: str | None, tables: list[str]) -> str:
    """The table of a database: the named one, or the only one."""
    if table is None and len(tables) == 1:
        return tables[0]
    if table in tables:
        return table or ""
    if table is None:
        listed = ", ".join(tables) or "none"
        raise UserError(f"{path} is a database with the tables {listed}: name the one of the log (--table)")
    raise UserError(f"{path} has no table {table!r}: {nearest(table, tables)}")


def quoted_name(name: str) -> str:
    """A name in a query."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str | Path) -> str:
    """A text in a query."""
    return "'" + str(text).replace("'", "''") + "'"


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
            f"{path} is neither a CSV text in UTF-8 ({error}) nor a file of Parquet, JSON, SQLite or DuckDB: convert it"
        ) from error


@contextmanager
def _sqlite(path: Path) -> Iterator[Any]:
    """A SQLite database, to read."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            yield database
    except sqlite3.Error as error:
        raise UserError(f"{path} begins like a SQLite file, but cannot be read ({error}): write it again") from error


@contextmanager
def _duckdb(path: Path, form: Format) -> Iterator[Any]:
    """DuckDB, to read a file of this format; what it cannot read is a UserError."""
    duckdb = optional("duckdb", f"reading {form} files", "tables")
    try:
        with closing(duckdb.connect()) as database:
            database.execute("SET TimeZone = 'UTC'")
            yield database
    except (duckdb.Error, OSError) as error:
        why = str(error).partition("\n")[0]
        raise UserError(f"{path} begins like a {form} file, but cannot be read ({why}): write it again") from error


def _types(database: Any, rows: str) -> dict[str, str]:
    return {name: str(kind) for name, kind, *_ in database.execute(f"DESCRIBE FROM {rows}").fetchall()}
