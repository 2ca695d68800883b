"""CSV files with a header row, as columns of text; every row keeps its file and line, for messages.

Shape letters: S rows.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.files import find_path
from turnout.errors import UserError, nearest

Columns = str | tuple[str, ...] | None
WILD = frozenset("*?[")  # a path with one of these is a pattern


@dataclass(frozen=True)
class Csv:
    """A CSV file, or all of a pattern (`joined`); `where` has each row's file and line."""

    path: Path
    columns: dict[str, list[str]]
    where: list[tuple[Path, int]]
    joined: bool = False

    def __len__(self) -> int:
        return len(self.where)

    def column(self, name: str) -> list[str]:
        if name not in self.columns:
            raise UserError(f"{self.path} has no column {name!r}: {nearest(name, self.columns)}")
        return self.columns[name]

    def place(self, row: int, name: str) -> str:
        """Where a cell is, for a message."""
        path, line = self.where[row]
        return f"{path}, line {line}, column {name!r}"

    def owners(self, names: Columns) -> tuple[Tensor | None, tuple[str, ...]]:
        """Each row's owner as a number, and the owners' names: the values of one column, or of several together."""
        if not names:
            return None, ()
        listed = (names,) if isinstance(names, str) else names
        columns = [self.column(name) for name in listed]
        for name, column in zip(listed, columns, strict=True):
            self.refuse(
                name, column, lambda cell: not cell.strip(), "the owner is missing; fill it in or remove the row"
            )
        return number_values([" / ".join(cell.strip() for cell in cells) for cells in zip(*columns, strict=True)])

    def files(self) -> tuple[Tensor, tuple[str, ...]]:
        """Each row's file as its owner: numbers, and the files' names without what all of them share."""
        paths = list(dict.fromkeys(path for path, _ in self.where))
        names = [path.relative_to(_common(paths)).with_suffix("").as_posix() for path in paths]
        number = {path: i for i, path in enumerate(paths)}
        return torch.tensor([number[path] for path, _ in self.where]), tuple(names)

    def numbers(self, name: str) -> list[float]:
        """A column of finite numbers; a mistake names the line of the file."""
        column = self.column(name)
        self.refuse(name, column, lambda cell: as_number(cell) is None, "{} is not a finite number; correct it")
        return [float(cell) for cell in column]

    def refuse(self, name: str, column: Sequence[str], wrong: Callable[[str], bool], words: str) -> None:
        """A mistake that names the first cell that is wrong, if one is; `{}` in its words is the cell."""
        for i, cell in enumerate(column):
            if wrong(cell):
                raise UserError(f"{self.place(i, name)}: {words.replace('{}', repr(cell))}")


def _common(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all of them."""
    return next(folder for folder in paths[0].parents if all(folder in path.parents for path in paths))


def as_number(cell: str) -> float | None:
    """A cell as a finite number; None where it is none.

    >>> as_number(" 1.5"), as_number("1,5"), as_number("inf")
    (1.5, None, None)
    """
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def find_tables(path: Path | str, data_dir: Path | None) -> Csv:
    """The table at a path: a file; or all files of a pattern ("towns/*.csv") or of a folder, one below the other."""
    if WILD & set(str(path)) and not Path(path).exists():
        folders, pattern = _cut(Path(path))
        return join_tables(find_path(folders, data_dir), str(pattern))
    found = find_path(path, data_dir)
    return join_tables(found, "*.csv") if found.is_dir() else read_csv(found)


def _cut(pattern: Path) -> tuple[Path, Path]:
    """A pattern as the folders before the first wildcard, and the rest.

    >>> [str(part) for part in _cut(Path("towns/*/a.csv"))]
    ['towns', '*/a.csv']
    """
    first = next(i for i, part in enumerate(pattern.parts) if WILD & set(part))
    return Path(*pattern.parts[:first]), Path(*pattern.parts[first:])


def join_tables(folder: Path, pattern: str) -> Csv:
    """All files of a folder that fit a pattern, one below the other; their columns must be the same."""
    paths = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not paths:
        raise UserError(f"{folder} has no files {pattern!r}: check the path and the pattern")
    tables = [read_csv(path) for path in paths]
    first = tables[0]
    for table in tables[1:]:
        for one, other in ((table, first), (first, table)):
            if lost := [name for name in other.columns if name not in one.columns]:
                raise UserError(
                    f"{one.path} has no column {lost[0]!r}, which {other.path} has: all files need the same columns"
                )
    columns = {name: [cell for table in tables for cell in table.columns[name]] for name in first.columns}
    return Csv(folder / pattern, columns, [place for table in tables for place in table.where], joined=True)


def read_csv(path: Path) -> Csv:
    """All columns of a CSV file that has a header row; between cells is a comma, or a semicolon or a tab."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a text may be longer than the default limit of 128 KiB
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=_delimiter(file.readline()))
            file.seek(0)
            header = next(reader, [])
            rows, lines, line = [], [], reader.line_num + 1
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(line)
                line = reader.line_num + 1
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8 ({error}): convert it first") from error
    if twice := [name for i, name in enumerate(header) if name in header[:i]]:
        raise UserError(f"{path} has two columns with the name {twice[0]!r}: rename or remove one of them")
    if not rows:
        raise UserError(f"{path} has no rows below its header")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            found = f"{len(row)} cell{'s' * (len(row) != 1)}, not {len(header)}"
            raise UserError(f"{path}, line {line}: {found}; correct the row")
    columns = {name: list(cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True)}
    return Csv(path, columns, [(path, line) for line in lines])


def _delimiter(header: str) -> str:
    """What separates the cells of a header: the mark that occurs most."""
    return max(",;\t", key=header.count)


def number_values(values: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Number the different values in their sorted order (as numbers, if all of them are).

    >>> number_values(["b", "a", "b"])
    (tensor([1, 0, 1]), ('a', 'b'))
    """
    different = set(values)
    try:
        names = tuple(sorted(different, key=lambda value: (float(value), value)))
    except ValueError:
        names = tuple(sorted(different))
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[value] for value in values]), names
