"""CSV files with a header row, and `Table`, a data set with one column per feature.

Shape letters: S samples.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.files import find_path
from turnout.data.partition import Partition
from turnout.data.partitioned import Partitioned, Pool
from turnout.errors import Mistake, nearest

Columns = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Csv:
    """A CSV file as columns of text."""

    path: Path
    columns: dict[str, list[str]]

    def column(self, name: str) -> list[str]:
        if name not in self.columns:
            raise Mistake(f"{self.path} has no column {name!r}: {nearest(name, self.columns)}")
        return self.columns[name]

    def owners(self, names: Columns) -> tuple[Tensor | None, tuple[str, ...]]:
        """Each row's owner as a number, and the owners' names: the values of one column, or of several together."""
        if not names:
            return None, ()
        columns = [self.column(name) for name in ((names,) if isinstance(names, str) else names)]
        return number_values([" / ".join(cells) for cells in zip(*columns, strict=True)])

    def numbers(self, name: str) -> list[float]:
        """A column of finite numbers; a mistake names the line of the file."""
        values = []
        for i, cell in enumerate(self.column(name)):
            try:
                value = float(cell)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise Mistake(
                    f"{self.path}, row {i + 1} after the header, column {name!r}: {cell!r} is not a "
                    "finite number; correct it or leave the column out"
                )
            values.append(value)
        return values


def read_csv(path: Path) -> Csv:
    """All columns of a CSV file that has a header row."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a text may be longer than the default limit of 128 KiB
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise Mistake(f"{path} is not a CSV file in UTF-8 ({error}): convert it first") from error
    if twice := [name for i, name in enumerate(header) if name in header[:i]]:
        raise Mistake(f"{path} has two columns with the name {twice[0]!r}: rename or remove one of them")
    rows = [row for row in rows if row]
    if not rows:
        raise Mistake(f"{path} has no rows below its header")
    wrong = [i for i, row in enumerate(rows) if len(row) != len(header)]
    if wrong:
        found = f"{len(rows[wrong[0]])} cells, not {len(header)}"
        raise Mistake(f"{path}, row {wrong[0] + 1} after the header: {found}; correct the row")
    return Csv(path, {name: list(cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True)})


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


@dataclass(frozen=True)
class Table(Partitioned):
    """Rows of numbers: `label` is the target's column, `owner` names the client (one column, or several together),
    `features` the inputs.

    Without `features`, all other columns are features. With `regression` the target is a number and not a class;
    `standardise` gives every feature mean 0 and standard deviation 1 over the whole table.
    """

    path: Path | str
    label: str
    owner: Columns = None
    features: tuple[str, ...] | None = None
    regression: bool = False
    standardise: bool = False
    clients: int | None = field(default=None, kw_only=True)
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label in (self.features or ()):
            raise Mistake(
                f"Table: {self.label!r} is the label and also among the features, so that a model would be shown the "
                "answer: leave it out of features"
            )

    def read(self, data_dir: Path | None = None) -> Pool:
        table = read_csv(find_path(self.path, data_dir))
        target = table.column(self.label)
        owner_S, owners = table.owners(self.owner)
        others = {self.label, *((self.owner,) if isinstance(self.owner, str) else self.owner or ())}
        features = self.features or [name for name in table.columns if name not in others]
        if not features:
            raise Mistake(f"{table.path} has no feature columns beside {', '.join(sorted(others))}")
        x = torch.tensor([table.numbers(name) for name in features], dtype=torch.float64).T.contiguous()
        if self.standardise:
            x = (x - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-12)
        if self.regression:
            y = torch.tensor(table.numbers(self.label)).unsqueeze(1)
            return Pool(x.float(), y, 1, owner_S=owner_S, owners=owners)
        y, names = number_values(target)
        return Pool(x.float(), y, len(names), names, owner_S=owner_S, owners=owners)


KINDS = {"table": Table}
