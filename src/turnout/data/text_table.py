"""Tables as columns of text, from one file or from several with the same columns; each row keeps its file and line.

Shape letters: S rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.files import find_path
from turnout.errors import UserError, nearest
from turnout.machine.table_files import TableFile, open_table

Columns = str | tuple[str, ...] | None
WILD = frozenset("*?[")  # a path with one of these is a pattern


@dataclass(frozen=True)
class TextTable:
    """Columns of text.

    path      the file, or the pattern that the files fit
    columns   the cells of each column, as they are in the file
    where     the file and the line of each row, for messages
    joined    whether the rows come from the files of a pattern or a folder
    """

    path: Path
    columns: dict[str, list[str]]
    where: list[tuple[TableFile, int]]
    joined: bool = False

    def __len__(self) -> int:
        return len(self.where)

    def column(self, name: str) -> list[str]:
        if name not in self.columns:
            raise UserError(f"{self.path} has no column {name!r}: {nearest(name, self.columns)}")
        return self.columns[name]

    def place(self, row: int, name: str) -> str:
        """Where a cell is, for a message."""
        file, line = self.where[row]
        return file.place(line, name)

    def refuse(self, name: str, column: Sequence[str], wrong: Callable[[str], bool], words: str) -> None:
        """A UserError for the first cell that is wrong, if one is; `{}` in its words stands for the cell."""
        for i, cell in enumerate(column):
            if wrong(cell):
                raise UserError(f"{self.place(i, name)}: {words.replace('{}', repr(cell))}")

    def owners(self, names: Columns) -> tuple[Tensor | None, tuple[str, ...]]:
        """Each row's owner as a number, and the owners' names: the values of one column, or of several together."""
        if not names:
            return None, ()
        listed = (names,) if isinstance(names, str) else names
        for name in listed:
            missing = "the owner is missing; fill it in or remove the row"
            self.refuse(name, self.column(name), lambda cell: not cell.strip(), missing)
        rows = zip(*(self.column(name) for name in listed), strict=True)
        return number_values([" / ".join(cell.strip() for cell in cells) for cells in rows])

    def files(self) -> tuple[Tensor, tuple[str, ...]]:
        """Each row's file as its owner: numbers, and the files' paths below the deepest folder that holds them all."""
        paths = list(dict.fromkeys(file.path for file, _ in self.where))
        common = next(folder for folder in paths[0].parents if all(folder in path.parents for path in paths))
        number = {path: i for i, path in enumerate(paths)}
        names = tuple(path.relative_to(common).with_suffix("").as_posix() for path in paths)
        return torch.tensor([number[file.path] for file, _ in self.where]), names


def read_tables(path: Path | str, data_dir: Path | None) -> TextTable:
    """The table at a path: a file; or all files of a pattern ("towns/*.csv") or of a folder, one below the other."""
    name, files = files_at(path, data_dir, "*.csv")
    tables = [_read(found) for found in files]
    if files == [name]:
        return tables[0]
    for one, other in [pair for table in tables[1:] for pair in ((table, tables[0]), (tables[0], table))]:
        if lost := [name for name in other.columns if name not in one.columns]:
            raise UserError(f"{one.path} has no column {lost[0]!r}, which {other.path} has: all need the same columns")
    columns = {name: [cell for table in tables for cell in table.columns[name]] for name in tables[0].columns}
    return TextTable(name, columns, [place for table in tables for place in table.where], joined=True)


def files_at(path: Path | str, data_dir: Path | None, usual: str) -> tuple[Path, list[Path]]:
    """The file at a path, or the files of a pattern or a folder (there those of the usual pattern); and their name."""
    if WILD & set(str(path)) and not Path(path).exists():
        parts = Path(path).parts
        first = next(i for i, part in enumerate(parts) if WILD & set(part))
        folder, pattern = find_path(Path(*parts[:first]), data_dir), str(Path(*parts[first:]))
    else:
        folder, pattern = find_path(path, data_dir), usual
        if not folder.is_dir():
            return folder, [folder]
    found = [file for file in sorted(folder.glob(pattern)) if file.is_file()]
    if not found:
        raise UserError(f"{folder} has no files {pattern!r}: check the path and the pattern")
    return folder / pattern, found


def _read(path: Path) -> TextTable:
    file = open_table(path)
    rows = file.read(strip=False)
    if not rows.line_B:
        raise UserError(f"{path} has no rows below its header")
    return TextTable(path, rows.cells, [(file, line) for line in rows.line_B])


def as_number(cell: str) -> float | None:
    """A cell as a finite number; None for any other text.

    >>> as_number(" 1.5"), as_number("1,5"), as_number("inf")
    (1.5, None, None)
    """
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def number_values(values: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Number the different values in their sorted order (as numbers, if all of them are numbers).

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
