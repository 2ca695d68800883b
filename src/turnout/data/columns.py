"""How the columns of a table become the inputs of a model: numbers, texts as one-hot categories, gaps by a fixed rule.

A column's encoding is learnt from the training rows only (`fit_column`) and is then the same for every row, also of
another file; `Table` describes it.

Shape letters: S rows of a table, I inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.data.text_table import TextTable, as_number, number_values
from turnout.errors import UserError

MISSING = ("", "NA", "N/A", "NaN", "null", "?")  # the default gaps, in small letters or large
GAP = "(missing)"
FEW = 10  # rows that may all have different texts by chance
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([T ,]+\d{1,2}:\d{2}.*)?")
WITH_COMMA = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?|[-+]?\d+,\d+")

Cells = list[str | None]  # of a column, None for a gap
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ColumnRules:
    """The settings of a `Table` about its columns.

    categories       columns that hold categories even if they look like numbers
    standardise      whether numbers get mean 0 and standard deviation 1
    missing          the texts that count as gaps, in small letters or large
    max_categories   a column with more different texts than this is refused
    """

    categories: tuple[str, ...] = ()
    standardise: bool = True
    missing: tuple[str, ...] = MISSING
    max_categories: int = 100

    def cells(self, table: TextTable, name: str) -> Cells:
        """A column without blanks around its cells, and with None for its gaps."""
        gaps, stripped = gaps_of(self.missing), list(map(str.strip, table.column(name)))
        return [None if low in gaps else cell for cell, low in zip(stripped, map(str.lower, stripped), strict=True)]


def gaps_of(missing: Iterable[str]) -> set[str]:
    """The texts that count as gaps, in small letters."""
    return {word.strip().lower() for word in missing}


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, encoded as (value - shift) / scale.

    name     of the column
    fill     the value of a gap
    shift    subtracted from every value
    scale    every value is divided by it
    marked   whether a second input marks the gaps
    """

    name: str
    fill: float
    shift: float = 0.0
    scale: float = 1.0
    marked: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} is missing") if self.marked else (self.name,)

    def encode(self, table: TextTable, rules: ColumnRules) -> Floats:
        cells = rules.cells(table, self.name)
        value_S = _floats(cells)
        if value_S is None:
            row = next(i for i, cell in enumerate(cells) if cell is not None and as_number(cell) is None)
            where = table.place(row, self.name)
            raise UserError(f"{where}: {cells[row]!r} is not a finite number; correct it or leave it empty")
        gap_S = np.isnan(value_S)
        scaled_S = (np.where(gap_S, self.fill, value_S) - self.shift) / self.scale
        return np.stack([scaled_S, gap_S] if self.marked else [scaled_S], axis=1).astype(np.float32)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of texts, encoded as an input of 0 and 1 for each category.

    name    of the column
    known   the categories: the texts in the training rows
    """

    name: str
    known: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name} = {text}" for text in self.known)

    def encode(self, table: TextTable, rules: ColumnRules) -> Floats:
        place = {text: i for i, text in enumerate(self.known)}
        column_S = np.array([place.get(GAP if cell is None else cell, -1) for cell in rules.cells(table, self.name)])
        return (column_S[:, None] == np.arange(len(self.known))).astype(np.float32)


Column = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class Encoding:
    """How a table's rows become inputs.

    columns   the encoding of each input column, in their order
    rules     the table's settings about columns
    """

    columns: tuple[Column, ...]
    rules: ColumnRules

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    def check(self, table: TextTable, row_R: Sequence[int]) -> None:
        """Refuse a text in these rows that is not a category: the model would not see it."""
        for column in self.columns:
            if isinstance(column, CategoryColumn):
                cells = self.rules.cells(table, column.name)
                for row in row_R:
                    if (text := cells[row] or GAP) not in column.known:
                        raise UserError(
                            f"{table.place(row, column.name)}: {text!r} is not among the categories that columns lists "
                            f"({some(column.known)}): correct it, or add it to the column's `known`"
                        )

    def encode(self, table: TextTable) -> Tensor:
        """The inputs [S, I] of the rows of a table that has these columns."""
        return torch.from_numpy(np.concatenate([column.encode(table, self.rules) for column in self.columns], axis=1))

    @staticmethod
    def from_plain(table: Mapping[str, Any]) -> Encoding:
        """The encoding from the tables and lists of its `asdict`, as a JSON file holds them."""
        columns: list[Column] = []
        for column in table["columns"]:
            texts = "known" in column
            columns.append(CategoryColumn(column["name"], tuple(column["known"])) if texts else NumberColumn(**column))
        lists: dict[str, Any] = {name: tuple(table["rules"][name]) for name in ("categories", "missing")}
        return Encoding(tuple(columns), ColumnRules(**{**table["rules"], **lists}))

    def text(self) -> str:
        """The encoding in a sentence."""
        numbers = [column for column in self.columns if isinstance(column, NumberColumn)]
        parts = [f"{some([column.name for column in numbers])} as numbers"] if numbers else []
        parts += [
            some([f"{c.name} has {len(c.known)} categories" for c in self.columns if isinstance(c, CategoryColumn)])
        ]
        if gaps := [column.name for column in numbers if column.marked]:
            parts.append(f"gaps ({some(gaps)}) are filled with the mean and marked in a column of their own")
        if self.rules.standardise and numbers:
            parts.append("numbers are standardised")
        return f"{'; '.join(filter(None, parts))}: {len(self.inputs)} inputs"


def listed_once(listed: tuple[str, ...] | None) -> bool:
    """Whether a list has entries and each of them once, or is None."""
    return listed is None or 0 < len(listed) == len(set(listed))


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few of a list, in words.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def number_labels(
    table: TextTable, name: str, cells: Sequence[str], known: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Each row's label as a number, and the labels: those that occur, or the known ones in their order."""
    y, names = number_values(cells)
    if known is None:
        return y, names
    number = {label: i for i, label in enumerate(known)}
    words = f"{{}} is not among the labels ({some(known)}): correct it, or add it"
    table.refuse(name, cells, lambda cell: cell not in number, words)
    return torch.tensor([number[label] for label in names])[y], known


def fit_column(table: TextTable, name: str, rules: ColumnRules, train_R: Sequence[int]) -> Column:
    """The encoding of a column, learnt from some rows of its table."""
    cells, leave_out = rules.cells(table, name), f"leave it out (leave_out=({name!r},))"
    present = [cell for cell in cells if cell is not None]
    if not present:
        raise UserError(f"{table.path}: column {name!r} has no values: {leave_out}")
    if name not in rules.categories:
        if (value_S := _floats(cells)) is not None:
            value_R = value_S[list(train_R)]
            known_R, marked = value_R[~np.isnan(value_R)], bool(np.isnan(value_R).any())
            mean, std = (float(known_R.mean()), float(known_R.std())) if len(known_R) else (0.0, 0.0)
            shift, scale = (mean, std or 1.0) if rules.standardise else (0.0, 1.0)
            return NumberColumn(name, mean, shift, scale, marked)
        texts = [row for row, cell in enumerate(cells) if cell is not None and as_number(cell) is None]
        first = f"{table.place(texts[0], name)}: {cells[texts[0]]!r} is"
        if len(texts) < len(present):
            raise UserError(
                f"{first} not a number, as others of the column are: correct it, leave it empty if it is unknown, or "
                f"mark the column as one of names (categories=({name!r},))"
            )
        if all(map(DATE.fullmatch, present)):
            raise UserError(f"{first} a date: turn it into numbers (days since then, a month, an hour), or {leave_out}")
        if all(map(WITH_COMMA.fullmatch, present)):
            raise UserError(f"{first} a number with a comma: write numbers with a point, and thousands without a mark")
    known = number_values([cells[row] or GAP for row in train_R])[1]
    all_differ = len(known) == len(train_R) > FEW and name not in rules.categories
    if len(known) > rules.max_categories or all_differ:
        raise UserError(
            f"{table.path}: column {name!r} has {len(known)} different texts in {len(train_R)} training rows, so it "
            f"looks like names: {leave_out}, or allow it (categories=({name!r},), max_categories={len(known)})"
        )
    return CategoryColumn(name, known)


def _floats(cells: Cells) -> NDArray[np.float64] | None:
    """All cells as numbers, NaN for a gap; None where a cell is not a finite number."""
    try:
        value_S = np.array([np.nan if cell is None else float(cell) for cell in cells])
    except ValueError:
        return None
    gaps = sum(cell is None for cell in cells)
    return value_S if int(np.isfinite(value_S).sum()) == len(cells) - gaps else None
