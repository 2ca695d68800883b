"""Predictions of a run's model for the rows of a table, with the labels of its training data.

Shape letters: S rows, K outputs of the model.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from turnout.data.description import Description
from turnout.data.text_table import TextTable, as_number, read_tables
from turnout.errors import UserError
from turnout.tasks import scores_of

AT_ONCE = 4096  # rows

Predicted = dict[str, list[str]]  # columns to write beside those of the table


@dataclass(frozen=True)
class Prediction:
    """A table with predictions.

    table    the table
    columns  the predicted columns
    score    a sentence that compares them with the table's own label column
    """

    table: TextTable
    columns: Predicted
    score: str | None = None

    def write(self, out: IO[str]) -> None:
        """Write a CSV: the table's own columns, then the predicted ones."""
        writer = csv.writer(out, lineterminator="\n")
        columns = self.table.columns | self.columns
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def predict(model: nn.Module, kept: Description, path: Path, label: str | None, data_dir: Path | None) -> Prediction:
    """Predict the rows of a CSV file (or of a folder of them); `label`: the label column, if the file has one."""
    table = read_tables(path, data_dir)
    x = inputs_of(table, kept, label)
    with torch.no_grad():
        output_SK = torch.cat([scores_of(model(part)) for part in x.split(AT_ONCE)])
    if output_SK.ndim != 2:
        raise UserError(f"this run's model gives {tuple(output_SK.shape[1:])} numbers per row, which is not a table")
    known = table.columns.get(label) if label is not None else None
    if kept.target_type == "float32":
        score = None
        if known is not None and output_SK.shape[1] == 1 and all(as_number(cell) is not None for cell in known):
            error = (output_SK[:, 0].double() - torch.tensor([float(cell) for cell in known])).abs().mean()
            score = f"predictions differ from column {label!r} by {float(error):.4g} on average"
        return Prediction(table, _renamed(_numbers(output_SK, "prediction"), table), score)
    if kept.target_shape:  # several labels per row: only the task knows what its outputs mean
        return Prediction(table, _renamed(_numbers(output_SK, "output"), table))
    if output_SK.shape[1] != len(kept.labels):
        raise UserError(
            f"this model has {output_SK.shape[1]} of the {len(kept.labels)} labels of the data, and a run does not "
            "record which: use it in Python, to.load_model(folder, client)"
        )
    chance_S, best_S = output_SK.softmax(1).max(1)
    predicted, score = [kept.labels[i] for i in best_S.tolist()], None
    if known is not None:
        right = sum(a == b.strip() for a, b in zip(predicted, known, strict=True))
        score = f"{right} of {len(known)} predictions are as in column {label!r} ({100 * right / len(known):.1f} %)"
    columns = {"prediction": predicted, "probability": [f"{chance:.6g}" for chance in chance_S.tolist()]}
    return Prediction(table, _renamed(columns, table), score)


def inputs_of(table: TextTable, kept: Description, label: str | None) -> Tensor:
    """The rows as inputs of the model: by the columns' names if it was trained on a table, else in their order."""
    if kept.encoding is not None:
        return kept.encoding.encode(table)
    wanted, shape = prod(kept.input_shape), " × ".join(map(str, kept.input_shape))
    names = [name for name in table.columns if name != label]
    if len(names) != wanted:
        raise UserError(
            f"{table.path} has {len(names)} columns, and this model needs {wanted} numbers per row ({shape}), in order"
        )
    for name in names:
        words = "{} is not a finite number, and this model was not trained on a table with texts"
        table.refuse(name, table.columns[name], lambda cell: as_number(cell) is None, words)
    numbers = torch.tensor([[float(cell) for cell in table.columns[name]] for name in names], dtype=torch.float64)
    return numbers.T.reshape(-1, *kept.input_shape).to(getattr(torch, kept.input_type))


def _numbers(output_SK: Tensor, called: str) -> Predicted:
    columns = output_SK.T.tolist()
    names = [called] if len(columns) == 1 else [f"{called} {i}" for i in range(len(columns))]
    return {name: [f"{value:.7g}" for value in column] for name, column in zip(names, columns, strict=True)}


def _renamed(columns: Predicted, table: TextTable) -> Predicted:
    """Predicted columns, renamed where the table has a column of that name."""
    return {f"{name} by turnout" if name in table.columns else name: cells for name, cells in columns.items()}
