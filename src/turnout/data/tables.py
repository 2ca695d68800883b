"""`Table`: a data set from table files, as people have them: numbers, texts, gaps.

Shape letters: S rows of the table, R training rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.columns import MISSING, Column, ColumnRules, Encoding, fit_column, gaps_of, listed_once, number_labels
from turnout.data.description import Description
from turnout.data.federation import Pooled, pool_tests
from turnout.data.partitioned import MayHaveOwners, Pool, federate
from turnout.data.text_table import Columns, TextTable, as_number, read_tables
from turnout.errors import UserError
from turnout.tasks import Standardised


@dataclass(frozen=True)
class Table(MayHaveOwners):
    """Rows of a CSV file; or of several with the same columns ("towns/*.csv", or a folder), each of which is a client.

    Parquet, JSON and DuckDB files are read too where duckdb is installed, and SQLite always.

    path            the file, a pattern or a folder
    label           the target's column: text or whole numbers are classes, numbers with fractions are to be predicted
                    (`task=Regression()`)
    owner           the column that names the client, or several together
    features        the input columns; None for all others but those in `leave_out`
    regression      whether the target is a number to predict; None to guess it as above
    standardise     numbers among the inputs, and a number to predict, get mean 0 and standard deviation 1. Metrics and
                    the trained model use the target's own unit all the same
    categories      columns that hold categories even if they look like numbers (a zip code)
    leave_out       columns that are not inputs
    missing         the texts that count as gaps, in small letters or large
    max_categories  a column with more different texts is refused, as it is more likely a name; so is one whose texts
                    all differ, unless it is listed in `categories`
    labels          the classes of the target in their order; None for those that occur
    columns         the encoding of each input column, in their order; None to learn it from the training rows
    target          the mean and deviation that a number to predict is standardised by; None for the training rows' own

    Devices that hold a table each need `labels`, `columns` and `target` in the experiment, or each would learn others
    from its own rows: `table.fixed()` gives them as learnt from this table, and `turnout deploy init` writes them.

    Texts become one-hot categories. A gap among numbers is filled with the column's mean, and a column of 0 and 1
    beside it marks the gaps; a gap among texts is a category of its own. Dates are refused. Means, deviations and
    categories are those of all clients' training rows together, as if clients had agreed on them beforehand; a text
    that is not among them is all zeros.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        named = None if self.columns is None else tuple(column.name for column in self.columns)
        features = self.features or ()
        if self.label in (*features, *(named or ())):
            raise UserError(f"Table: {self.label!r} is the label and also among the features: leave it out there")
        if named == () or (named and features and named != features):
            raise UserError(f"Table: columns describes {named}, and features is {features}: list the same columns")
        if both := [name for name in features if name in self.leave_out]:
            raise UserError(f"Table: {both[0]!r} is a feature and also left out: remove it from one of them")
        if not listed_once(self.labels):
            raise UserError(f"Table(labels={self.labels}): list every class of the target once")
        if self.labels is not None and (self.target is not None or self.regression):
            raise UserError("Table: labels are of classes, target and regression of a number: leave one of them out")
        if self.target is not None and (not self.standardise or self.regression is False):
            raise UserError("Table: target is of a number to predict: leave it out, or set regression and standardise")

    def read(self, data_dir: Path | None = None) -> Pool:
        """All samples; the encoding of columns is learnt from all rows."""
        table, pool = self._open(data_dir)
        encoding, unit = self._learn(table, pool, torch.arange(len(table)))
        return replace(pool, x=encoding.encode(table), y=_targets(pool.y, unit))

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        table, pool = self._open(data_dir)
        dealt = federate(pool, self, seed)
        encoding, unit = self._learn(table, pool, dealt.train_rows.row_R)
        kind = f"has {pool.classes} classes" if pool.labels else "is a number"
        if unit:
            kind += f", standardised (mean {unit.mean:.3g}, deviation {unit.std:.3g}; metrics are in its own unit)"
        note = f"{table.path.name}: {encoding.text()}; target {self.label!r} {kind}"
        x, y = encoding.encode(table), _targets(pool.y, unit)
        return pool_tests(replace(dealt, x=x, y=y, standardised=unit, encoding=encoding, note=note))

    def fixed(self, seed: int = 0, data_dir: Path | None = None) -> Table:
        """The same table with labels, columns and target as learnt from its training rows, for devices to share."""
        found = self.load(seed, data_dir)
        assert found.encoding is not None
        kind = {"labels": found.labels} if found.labels else {"regression": True, "target": found.standardised}
        return replace(self, columns=found.encoding.columns, **kind)

    def declared(self) -> Description | None:
        number = self.target is not None or (self.regression and not self.standardise)
        if self.columns is None or (self.labels is None and not number):
            return None
        encoding, labels = Encoding(self.columns, self._rules), self.labels or ()
        kinds = (
            {"target_shape": (), "target_type": "int64"} if labels else {"target_shape": (1,), "target_type": "float32"}
        )
        return Description(
            clients=self.clients or 1, input_shape=(len(encoding.inputs),), input_type="float32", **kinds,
            classes=len(labels) or 1, labels=labels, standardised=self.target, encoding=encoding,
        )  # fmt: skip

    def encode(self, path: Path | str, seed: int = 0, data_dir: Path | None = None) -> Tensor:
        """The inputs of another file's rows, encoded as this table's training rows were; it needs no label."""
        encoding = self.load(seed, data_dir).encoding
        assert encoding is not None
        return encoding.encode(read_tables(path, data_dir))

    @property
    def _rules(self) -> ColumnRules:
        return ColumnRules(self.categories, self.standardise, self.missing, self.max_categories)

    def _open(self, data_dir: Path | None) -> tuple[TextTable, Pool]:
        """The table, and each row's owner and target, which a partition needs; its `x` has only row numbers."""
        table = read_tables(self.path, data_dir)
        for name in (*self.categories, *self.leave_out, *(self.features or ())):
            table.column(name)
        gaps, words = gaps_of(self.missing), "the target is missing; fill it in or remove the row"
        cells = [cell.strip() for cell in table.column(self.label)]
        table.refuse(self.label, cells, lambda cell: cell.lower() in gaps, words)
        owner_S, owners = table.files() if table.joined and not self.owner else table.owners(self.owner)
        row_S = torch.arange(len(table)).unsqueeze(1)
        if self.labels is not None or self.target is not None:
            is_number = self.labels is None
        elif self.regression is not None:
            is_number = self.regression
        else:
            values = [as_number(cell) for cell in cells]
            is_number = None not in values and any(value is not None and not value.is_integer() for value in values)
        if is_number:
            words = "{} is not a finite number; correct it"
            table.refuse(self.label, cells, lambda cell: as_number(cell) is None, words)
            y = torch.tensor([float(cell) for cell in cells], dtype=torch.float64).unsqueeze(1)
            return table, Pool(row_S, y, 1, owner_S=owner_S, owners=owners)
        y, names = number_labels(table, self.label, cells, self.labels)
        return table, Pool(row_S, y, len(names), names, owner_S=owner_S, owners=owners)

    def _learn(self, table: TextTable, pool: Pool, row_R: Tensor) -> tuple[Encoding, Standardised | None]:
        """The encoding of inputs and the unit of a number to predict, from the settings or learnt from some rows."""
        rows = row_R.tolist()
        if self.columns is not None:
            encoding = Encoding(self.columns, self._rules)
            encoding.check(table, rows)
        else:
            owner = (self.owner,) if isinstance(self.owner, str) else self.owner or ()
            others = {self.label, *owner, *self.leave_out}
            features = self.features or [name for name in table.columns if name not in others]
            if not features:
                raise UserError(f"{table.path} has no feature columns beside {', '.join(sorted(others))}")
            rules = self._rules
            encoding = Encoding(tuple(fit_column(table, name, rules, rows) for name in features), rules)
        if pool.labels or not self.standardise or self.target is not None:
            return encoding, self.target
        known = pool.y[row_R]
        return encoding, Standardised(known.mean().item(), known.std(correction=0).item() or 1.0)


def _targets(y: Tensor, unit: Standardised | None) -> Tensor:
    target = y if unit is None else unit.standard(y)
    return target.float() if y.is_floating_point() else y


KINDS = {"table": Table}
