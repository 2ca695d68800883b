"""Checks of a user's own data: shapes, labels, NaN and infinite numbers. A mistake says where.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError

Array = Tensor | np.ndarray


def as_samples(x: Array, y: Array, place: str) -> tuple[Tensor, Tensor]:
    """Arrays as tensors: inputs float32 (whole numbers int64, for embeddings), targets int64 or float32."""
    x = _tensor(x, f"{place}: x", "turn it into numbers")
    y = _tensor(y, f"{place}: y", "number the classes from 0, and give their names as labels")
    x = x.to(torch.float32 if x.is_floating_point() else torch.int64)
    if y.is_floating_point():
        return x, y.float().unsqueeze(1) if y.ndim == 1 else y.float()
    return x, y.long()


def _tensor(values: Array, name: str, advice: str) -> Tensor:
    try:
        return torch.as_tensor(values).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name} is not an array of numbers ({error}): {advice}") from error


def check_paired(x: Tensor, y: Tensor) -> None:
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise UserError(f"x is {tuple(x.shape)} and y {tuple(y.shape)}: give one row of each per sample")


def classes_of(y: Tensor, classes: int | None, labels: Sequence[str] | None) -> int:
    """How many outputs a model needs: `classes`, one per label, or the largest label + 1; for numbers their width, and
    so for rows of 0 and 1 (any number of labels each).

    >>> classes_of(torch.tensor([4, 2]), None, None), classes_of(torch.tensor([[0, 1, 1], [0, 0, 0]]), None, None)
    (5, 3)
    """
    if y.is_floating_point():
        return y[0].numel() if len(y) else 1
    if _any_number_of_labels(y):
        return classes or (len(labels) if labels else y.shape[1])
    found = int(y.max()) + 1 if y.numel() else 0
    return classes or (len(labels) if labels else max(found, 2))


def _any_number_of_labels(y: Tensor) -> bool:
    return y.ndim == 2 and y.numel() > 0 and bool(((y == 0) | (y == 1)).all())


def check_samples(
    x: Tensor,
    y: Tensor,
    classes: int,
    place: Callable[[int], str],
    input_shape: Sequence[int] | None = None,
) -> None:
    """Refuse samples that cannot be trained on; `place` describes where a row is, for the message."""
    check_paired(x, y)
    if not len(x):
        raise UserError(f"{place(0)}: there are no samples here; every client needs at least one")
    if input_shape is not None and tuple(x.shape[1:]) != tuple(input_shape):
        shape = tuple(x.shape[1:])
        raise UserError(f"{place(0)}: a sample has shape {shape}, and {tuple(input_shape)} is expected")
    for name, values in (("x", x), ("y", y)):
        if values.is_floating_point():
            bad = (~values.flatten(1).isfinite()).any(1)
            _refuse(bad, place, f"{name} is NaN or infinite; repair or remove the sample")
    if not y.is_floating_point() and not _any_number_of_labels(y):
        wrong = ((y < 0) | (y >= classes)).view(len(y), -1).any(1)
        _refuse(wrong, place, f"the label is outside 0 to {classes - 1}; renumber it or raise classes")


def _refuse(bad_S: Tensor, place: Callable[[int], str], reason: str) -> None:
    rows = bad_S.nonzero().flatten().tolist()
    if rows:
        more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        raise UserError(f"{place(rows[0])}{more}: {reason}")
