"""How the columns of a table become the inputs of a model: numbers, texts as one-hot categories, gaps by a stated rule.

What a column becomes is learnt from the training rows only (`fit_column`), and is then the same for every row, also of
another file. A number's gap is filled with the column's mean, and a column of 0 and 1 beside it says where the gaps
were. A text is one column of 0 and 1 for each category; a gap among texts is a category of its own, and a text that was
not among the training rows has no column that is 1.

Shape letters: S rows of a table, I inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.data.csv_files import Csv, as_number, number_values
from turnout.errors import UserError

MISSING = ("", "NA", "N/A", "NaN", "null", "?")  # what counts as a gap, in small letters or large
GAP = "(missing)"
FEW = 10  # rows that may all have different texts by chance
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([T ,]+\d{1,2}:\d{2}.*)?")
WITH_COMMA = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?|[-+]?\d+,\d+")

Cells = list[str | None]  # of a column, None for a gap
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ColumnRules:
    """What a person may say about columns; the fields are those of `Table`."""

    categories: tuple[str, ...] = ()
    standardise: bool = True
    missing: tuple[str, ...] = MISSING
    max_categories: int = 100

    def cells(self, table: Csv, name: str) -> Cells:
        """A column without blanks around its cells, and with None for its gaps."""
        gaps, stripped = gaps_of(self.missing), list(map(str.strip, table.column(name)))
        return [None if low in gaps else cell for cell, low in zip(stripped, map(str.lower, stripped), strict=True)]


def gaps_of(missing: Iterable[str]) -> set[str]:
    """What counts as a gap, in small letters."""
    return {word.strip().lower() for word in missing}


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (value - shift) / scale, with `fill` for a gap; `marked`: an input says where gaps were."""

    name: str
    fill: float
    shift: float = 0.0
    scale: float = 1.0
    marked: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} is missing") if self.marked else (self.name,)

    def encode(self, table: Csv, rules: ColumnRules) -> Floats:
        value_S = numbers(table, self.name, rules.cells(table, self.name))
        gap_S = np.isnan(value_S)
        scaled_S = (np.where(gap_S, self.fill, value_S) - self.shift) / self.scale
        return np.stack([scaled_S, gap_S] if self.marked else [scaled_S], axis=1).astype(np.float32)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of texts: an input of 0 and 1 for each of the texts in the training rows."""

    name: str
    known: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name} = {text}" for text in self.known)

    def encode(self, table: Csv, rules: ColumnRules) -> Floats:
        place = {text: i for i, text in enumerate(self.known)}
        column_S = np.array([place.get(GAP if cell is None else cell, -1) for cell in rules.cells(table, self.name)])
        return (column_S[:, None] == np.arange(len(self.known))).astype(np.float32)


Column = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class Encoding:
    """How a table's rows become inputs, column after column."""

    columns: tuple[Column, ...]
    rules: ColumnRules

    @property
    def inputs(self) -> tuple[str, ...]:
        """What each input of the model is."""
        return tuple(name for column in self.columns for name in column.inputs)

    def check(self, table: Csv, row_R: Sequence[int]) -> None:
        """Refuse a text in these rows that no category stands for: the model would not see it."""
        for column in self.columns:
            if isinstance(column, CategoryColumn):
                cells = self.rules.cells(table, column.name)
                for row in row_R:
                    if (text := cells[row] or GAP) not in column.known:
                        raise UserError(
                            f"{table.place(row, column.name)}: {text!r} is not among the categories that columns lists "
                            f"({some(column.known)}): correct it, or add it to the column's `known`"
                        )

    def encode(self, table: Csv) -> Tensor:
        """The inputs [S, I] of the rows of a table that has these columns."""
        return torch.from_numpy(np.concatenate([column.encode(table, self.rules) for column in self.columns], axis=1))

    def plain(self) -> dict[str, Any]:
        """As tables and lists that a JSON file can hold; `from_plain` is the way back."""
        return asdict(self)

    @staticmethod
    def from_plain(table: Mapping[str, Any]) -> Encoding:
        columns: list[Column] = []
        for column in table["columns"]:
            texts = "known" in column
            columns.append(CategoryColumn(column["name"], tuple(column["known"])) if texts else NumberColumn(**column))
        rules = table["rules"]
        lists: dict[str, Any] = {name: tuple(rules[name]) for name in ("categories", "missing")}
        return Encoding(tuple(columns), ColumnRules(**{**rules, **lists}))

    def text(self) -> str:
        """What was done, in a sentence."""
        found = [column.name for column in self.columns if isinstance(column, NumberColumn)]
        texts = [column for column in self.columns if isinstance(column, CategoryColumn)]
        parts = [f"{some(found)} {'are numbers' if len(found) > 1 else 'is a number'}"] if found else []
        parts += [some([f"{column.name} has {len(column.known)} categories" for column in texts])] if texts else []
        gaps = [column.name for column in self.columns if isinstance(column, NumberColumn) and column.marked]
        if gaps:
            parts.append(f"gaps ({some(gaps)}) are filled with the mean and marked in a column of their own")
        if self.rules.standardise and found:
            parts.append("numbers are standardised")
        return f"{'; '.join(parts)}: {len(self.inputs)} inputs"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few of a list, in words.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def number_labels(
    table: Csv, name: str, cells: Sequence[str], known: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Each row's label as a number, and the labels: those that occur, or the known ones in their order."""
    y, names = number_values(cells)
    if known is None:
        return y, names
    number = {label: i for i, label in enumerate(known)}
    words = f"{{}} is not among the labels ({some(known)}): correct it, or add it"
    table.refuse(name, cells, lambda cell: cell not in number, words)
    return torch.tensor([number[label] for label in names])[y], known


def fit_column(table: Csv, name: str, rules: ColumnRules, train_R: Sequence[int]) -> Column:
    """What a column becomes, learnt from some rows of its table."""
    cells = rules.cells(table, name)
    if not any(cell is not None for cell in cells):
        raise UserError(f"{table.path}: column {name!r} has no values: {leave_out(name)}")
    if name not in rules.categories and _is_number(table, name, cells):
        return _fit_numbers(name, numbers(table, name, cells)[list(train_R)], rules.standardise)
    known = number_values([cells[row] or GAP for row in train_R])[1]
    all_differ = len(known) == len(train_R) > FEW and name not in rules.categories
    if len(known) > rules.max_categories or all_differ:
        raise UserError(
            f"{table.path}: column {name!r} has {len(known)} different texts in {len(train_R)} training rows, as names "
            f"have and categories have not: {leave_out(name)}, or say that it is one (categories=({name!r},), and "
            f"max_categories={len(known)} where there are more than {rules.max_categories})"
        )
    return CategoryColumn(name, known)


def _fit_numbers(name: str, value_R: NDArray[np.float64], standardise: bool) -> NumberColumn:
    known = value_R[~np.isnan(value_R)]
    mean, std = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    marked = bool(np.isnan(value_R).any())
    return (
        NumberColumn(name, mean, mean, std or 1.0, marked) if standardise else NumberColumn(name, mean, marked=marked)
    )


def numbers(table: Csv, name: str, cells: Cells) -> NDArray[np.float64]:
    """A column's numbers, NaN for a gap."""
    value_S = _floats(cells)
    if value_S is None:
        row = next(i for i, cell in enumerate(cells) if cell is not None and as_number(cell) is None)
        raise UserError(
            f"{table.place(row, name)}: {cells[row]!r} is not a finite number; correct it or leave it empty"
        )
    return value_S


def _floats(cells: Cells) -> NDArray[np.float64] | None:
    """All cells as numbers, NaN for a gap; None where one of them is no finite number."""
    try:
        value_S = np.array([np.nan if cell is None else float(cell) for cell in cells])
    except ValueError:
        return None
    gaps = sum(cell is None for cell in cells)
    return value_S if int(np.isfinite(value_S).sum()) == len(cells) - gaps else None


def _is_number(table: Csv, name: str, cells: Cells) -> bool:
    """Whether a column holds numbers; a mistake where it holds numbers and texts, dates, or numbers with commas."""
    if _floats(cells) is not None:
        return True
    texts = [row for row, cell in enumerate(cells) if cell is not None and as_number(cell) is None]
    first = f"{table.place(texts[0], name)}: {cells[texts[0]]!r} is"
    known = [cell for cell in cells if cell is not None]
    if len(texts) < len(known):
        raise UserError(
            f"{first} not a number, as others of the column are: correct it, leave it empty if it is unknown, or say "
            f"that the column has names (categories=({name!r},))"
        )
    if all(map(DATE.fullmatch, known)):
        raise UserError(
            f"{first} a date, which no model can multiply: turn it into numbers (days since then, a month, an hour), "
            f"or {leave_out(name)}"
        )
    if all(map(WITH_COMMA.fullmatch, known)):
        raise UserError(f"{first} a number with a comma: write numbers with a point, and thousands without a mark")
    return False


def leave_out(name: str) -> str:
    """What to write to do without a column."""
    return f"leave it out (leave_out=({name!r},))"
