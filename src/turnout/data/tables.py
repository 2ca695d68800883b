"""`Table`: a data set from CSV files, as people have them: numbers, texts, gaps.

Shape letters: S rows of the table, R training rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.columns import MISSING, Column, ColumnRules, Encoding, fit_column, gaps_of, number_labels
from turnout.data.csv_files import Columns, Csv, as_number, find_tables
from turnout.data.description import Description
from turnout.data.partition import Partition
from turnout.data.partitioned import Partitioned, Pool, federate
from turnout.data.pooled import Pooled, pool_tests
from turnout.errors import UserError
from turnout.tasks import Standardised


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
    labels          the classes of the target in their order; None for those that occur
    columns         what each input column becomes, in their order; None to learn it from the training rows
    target          the mean and deviation that a number to predict is standardised by; None for the training rows' own

    Devices that hold a table each need `labels`, `columns` and `target` in the experiment, or each would learn others
    from its own rows: `table.fixed()` gives them as learnt from this table, and `turnout deploy init` writes them.

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
    labels: tuple[str, ...] | None = None
    columns: tuple[Column, ...] | None = None
    target: Standardised | None = None
    clients: int | None = field(default=None, kw_only=True)
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        named = None if self.columns is None else tuple(column.name for column in self.columns)
        if self.label in (*(self.features or ()), *(named or ())):
            raise UserError(
                f"Table: {self.label!r} is the label and also among the features, so that a model would be shown the "
                "answer: leave it out of features and columns"
            )
        if named == () or (named and self.features is not None and named != self.features):
            raise UserError(f"Table: columns describes {named}, and features is {self.features}: list the same columns")
        if self.labels is not None and (not self.labels or len(set(self.labels)) < len(self.labels)):
            raise UserError(f"Table(labels={self.labels}): list every class of the target once")
        if self.labels is not None and (self.target is not None or self.regression):
            raise UserError(
                "Table: labels are of classes, and target and regression of a number: leave one of them out"
            )
        if self.target is not None and (not self.standardise or self.regression is False):
            raise UserError(
                "Table: target standardises a number to predict: leave it out, or set regression and standardise"
            )
        if both := [name for name in self.features or () if name in self.leave_out]:
            raise UserError(f"Table: {both[0]!r} is a feature and also left out: say one of the two")

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

    def fixed(self, seed: int = 0, data_dir: Path | None = None) -> Table:
        """The same table with labels, columns and target as learnt from its training rows, for devices to share."""
        found = self.load(seed, data_dir)
        assert found.encoding is not None
        kind = {"labels": found.labels} if found.labels else {"regression": True, "target": found.standardised}
        return replace(self, columns=found.encoding.columns, **kind)

    def declared(self) -> Description | None:
        """What samples are like, where the settings say it without the file; None where they do not."""
        number = self.target is not None or (self.regression and not self.standardise)
        if self.columns is None or (self.labels is None and not number):
            return None
        encoding, labels = Encoding(self.columns, self._rules()), self.labels or ()
        kinds = (
            {"target_shape": (), "target_type": "int64"} if labels else {"target_shape": (1,), "target_type": "float32"}
        )
        return Description(
            clients=self.clients or 1, input_shape=(len(encoding.inputs),), input_type="float32", **kinds,
            classes=len(labels) or 1, labels=labels, standardised=self.target, encoding=encoding,
        )  # fmt: skip

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
        cells = [cell.strip() for cell in table.column(self.label)]
        y, names = number_labels(table, self.label, cells, self.labels)
        return Pool(row_S, y, len(names), names, owner_S=owner_S, owners=owners)

    def _predicts_number(self, table: Csv) -> bool:
        if self.labels is not None or self.target is not None:
            return self.labels is None
        if self.regression is not None:
            return self.regression
        values = [as_number(cell) for cell in table.column(self.label)]
        return None not in values and any(value is not None and not value.is_integer() for value in values)

    def _learnt(self, table: Csv, pool: Pool, row_R: Tensor) -> _Learnt:
        """What some rows say about the columns and the target."""
        if self.columns is not None:
            encoding = Encoding(self.columns, self._rules())
            encoding.check(table, row_R.tolist())
        else:
            encoding = self._learnt_columns(table, row_R.tolist())
        if pool.labels or not self.standardise:
            return _Learnt(encoding)
        if self.target is not None:
            return _Learnt(encoding, self.target)
        known = pool.y[row_R]
        return _Learnt(encoding, Standardised(known.mean().item(), known.std(correction=0).item() or 1.0))

    def _rules(self) -> ColumnRules:
        return ColumnRules(self.categories, self.standardise, self.missing, self.max_categories)

    def _learnt_columns(self, table: Csv, rows: list[int]) -> Encoding:
        others = {self.label, *((self.owner,) if isinstance(self.owner, str) else self.owner or ()), *self.leave_out}
        features = self.features or [name for name in table.columns if name not in others]
        if not features:
            raise UserError(f"{table.path} has no feature columns beside {', '.join(sorted(others))}")
        rules = self._rules()
        return Encoding(tuple(fit_column(table, name, rules, rows) for name in features), rules)

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
