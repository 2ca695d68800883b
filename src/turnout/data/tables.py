"""`Table`: a data set from CSV files, as people have them: numbers, texts, gaps.

Shape letters: S rows of the table, R training rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.columns import MISSING, ColumnRules, Encoding, fit_column, gaps_of
from turnout.data.csv_files import Columns, Csv, as_number, find_tables, number_values
from turnout.data.partition import Partition
from turnout.data.partitioned import Partitioned, Pool, federate
from turnout.data.pooled import Pooled, pool_tests
from turnout.errors import Mistake
from turnout.task import Standardised


@dataclass(frozen=True)
class Table(Partitioned):
    """Rows of a CSV file; or of several with the same columns ("towns/*.csv", or a folder), each of which is a client.

    label           the target's column: text or whole numbers are classes, numbers with fractions are to be predicted
                    (`task=Regression()`); `regression` says it where that guess is wrong
    owner           the column that names the client, or several together
    features        the input columns; None for all others but those in `leave_out`
    standardise     numbers among the inputs, and a number to predict, get mean 0 and standard deviation 1. Metrics and
                    the trained model speak the target's own unit all the same
    categories      columns that hold categories also where they do not look so: numbers that are names (a zip code)
    missing         what counts as a gap, in small letters or large
    max_categories  a column with more different texts than that is refused, as it is more likely a name; so is one
                    whose texts all differ, unless it is listed in `categories`

    Texts become one-hot categories. A gap among numbers is filled with the column's mean, and a column of 0 and 1
    beside it says where the gaps were; a gap among texts is a category of its own. Dates are refused. Means,
    deviations and categories are those of all clients' training rows together, as if clients had agreed on them
    beforehand; a text that is not among them is all zeros.
    """

    path: Path | str
    label: str
    owner: Columns = None
    features: tuple[str, ...] | None = None
    regression: bool | None = None
    standardise: bool = True
    categories: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = MISSING
    max_categories: int = 100
    clients: int | None = field(default=None, kw_only=True)
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label in (self.features or ()):
            raise Mistake(
                f"Table: {self.label!r} is the label and also among the features, so that a model would be shown the "
                "answer: leave it out of features"
            )
        if both := [name for name in self.features or () if name in self.leave_out]:
            raise Mistake(f"Table: {both[0]!r} is a feature and also left out: say one of the two")

    def read(self, data_dir: Path | None = None) -> Pool:
        """All samples; what is learnt of columns is learnt from all rows."""
        table = self._table(data_dir)
        pool = self._undealt(table)
        x, y = self._learnt(table, pool, torch.arange(len(table))).samples(table, pool.y)
        return replace(pool, x=x, y=y)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        table = self._table(data_dir)
        pool = self._undealt(table)
        dealt = federate(pool, self, seed)
        learnt = self._learnt(table, pool, dealt.train_rows.row_R)
        x, y = learnt.samples(table, pool.y)
        note = f"{table.path.name}: {learnt.encoding.text()}; {self._said(pool, learnt.unit)}"
        return pool_tests(replace(dealt, x=x, y=y, standardised=learnt.unit, encoding=learnt.encoding, note=note))

    def encode(self, path: Path | str, seed: int = 0, data_dir: Path | None = None) -> Tensor:
        """The inputs of another file's rows, made as this table's training rows were; it needs no label."""
        table = self._table(data_dir)
        pool = self._undealt(table)
        train_R = federate(pool, self, seed).train_rows.row_R
        return self._learnt(table, pool, train_R).encoding.encode(find_tables(path, data_dir))

    def _table(self, data_dir: Path | None) -> Csv:
        table = find_tables(self.path, data_dir)
        for name in (*self.categories, *self.leave_out, *(self.features or ())):
            table.column(name)
        gaps, words = gaps_of(self.missing), "the target is missing; fill it in or remove the row"
        table.refuse(self.label, table.column(self.label), lambda cell: cell.strip().lower() in gaps, words)
        return table

    def _undealt(self, table: Csv) -> Pool:
        """Who owns which row, and its target: what a partition looks at. The inputs come after the rows are dealt."""
        owner_S, owners = table.files() if table.joined and not self.owner else table.owners(self.owner)
        row_S = torch.arange(len(table)).unsqueeze(1)
        if self._predicts_number(table):
            y = torch.tensor(table.numbers(self.label), dtype=torch.float64).unsqueeze(1)
            return Pool(row_S, y, 1, owner_S=owner_S, owners=owners)
        y, names = number_values([cell.strip() for cell in table.column(self.label)])
        return Pool(row_S, y, len(names), names, owner_S=owner_S, owners=owners)

    def _predicts_number(self, table: Csv) -> bool:
        if self.regression is not None:
            return self.regression
        values = [as_number(cell) for cell in table.column(self.label)]
        return None not in values and any(value is not None and not value.is_integer() for value in values)

    def _learnt(self, table: Csv, pool: Pool, row_R: Tensor) -> _Learnt:
        """What some rows say about the columns and the target."""
        others = {self.label, *((self.owner,) if isinstance(self.owner, str) else self.owner or ()), *self.leave_out}
        features = self.features or [name for name in table.columns if name not in others]
        if not features:
            raise Mistake(f"{table.path} has no feature columns beside {', '.join(sorted(others))}")
        rules, rows = ColumnRules(self.categories, self.standardise, self.missing, self.max_categories), row_R.tolist()
        encoding = Encoding(tuple(fit_column(table, name, rules, rows) for name in features), rules)
        if pool.labels or not self.standardise:
            return _Learnt(encoding)
        known = pool.y[row_R]
        return _Learnt(encoding, Standardised(known.mean().item(), known.std(correction=0).item() or 1.0))

    def _said(self, pool: Pool, unit: Standardised | None) -> str:
        if pool.labels:
            return f"target {self.label!r} has {pool.classes} classes"
        how = f"mean {unit.mean:.3g}, deviation {unit.std:.3g}; metrics are in its own unit" if unit else ""
        return f"target {self.label!r} is a number" + (f", standardised ({how})" if unit else "")


@dataclass(frozen=True)
class _Learnt:
    """How rows become inputs, and how a number to predict is standardised."""

    encoding: Encoding
    unit: Standardised | None = None

    def samples(self, table: Csv, y: Tensor) -> tuple[Tensor, Tensor]:
        target = y if self.unit is None else self.unit.standard(y)
        return self.encoding.encode(table), target.float() if y.is_floating_point() else y


KINDS = {"table": Table}
