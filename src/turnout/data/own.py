"""A user's own data: tensors in memory (`Own`), and the checks of shapes, labels and numbers that all own data passes.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.data.partitioned import MayHaveOwners, Pool
from turnout.data.text_table import number_values
from turnout.errors import UserError

Array = Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class Own(MayHaveOwners):
    """Tensors in memory; every owner is a client unless a partition is given.

    x           samples
    y           targets: whole numbers are classes, others are numbers to be predicted
    owner       each sample's owner, as a number or a name
    test        a central test set (x, y)
    classes     how many; None for one per label, or the largest target plus one
    labels      the names of the classes

    >>> import torch
    >>> data = Own(torch.zeros(3, 2), torch.tensor([0, 1, 1]), owner=["ann", "bob", "ann"]).load(seed=0)
    >>> data.names, data.examples(torch.arange(2))
    (('ann', 'bob'), tensor([1, 1]))
    """

    x: Array
    y: Array
    owner: Array | Sequence[int] | Sequence[str] | None = None
    test: tuple[Array, Array] | None = None
    classes: int | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test is not None and not (isinstance(self.test, tuple | list) and len(self.test) == 2):
            raise UserError("Own: test is a central test set: give a pair (x, y) of samples and their targets")

    def read(self, data_dir: Path | None = None) -> Pool:
        x, y = as_samples(self.x, self.y, "Own")
        test = as_samples(*self.test, "Own, test set") if self.test else None
        given = self.owner.cpu().numpy() if isinstance(self.owner, Tensor) else self.owner
        return checked_pool("Own", "row", x, y, given, test, self.classes, self.labels)


def checked_pool(
    name: str, row: str, x: Tensor, y: Tensor, owner: np.ndarray | Sequence[Any] | None,
    test: tuple[Tensor, Tensor] | None, classes: int | None, labels: tuple[str, ...] | None,
) -> Pool:  # fmt: skip
    """A pool of own samples, checked; `name` and `row` are the data set's and a sample's name in messages."""
    _check_paired(x, y)
    if not len(x):
        raise UserError(f"{name}: there are no samples; every client needs at least one")
    owner_S: Tensor | None = None
    owners: tuple[str, ...] = ()
    if owner is not None:
        if len(owner) != len(y):
            raise UserError(f"{name}: {len(y)} samples and {len(owner)} owners; give one owner per sample")
        if isinstance(owner, np.ndarray) and owner.dtype.kind == "i" and owner.ndim == 1:  # quicker than texts
            numbers, number_S = np.unique(owner, return_inverse=True)
            owner_S, owners = torch.from_numpy(number_S.astype(np.int64)), tuple(map(str, numbers.tolist()))
        else:
            listed = owner.tolist() if isinstance(owner, np.ndarray) else owner
            owner_S, owners = number_values([str(one) for one in listed])
    known = classes_of(y, classes, labels)

    def place(i: int) -> str:
        whose = "" if owner_S is None else f" (client {owners[int(owner_S[i])]!r})"
        return f"{name}, {row} {i}{whose}"

    check_samples(x, y, known, place)
    if test:
        check_samples(*test, known, lambda i: f"{name}, test {row} {i}", x.shape[1:])
    names = () if y.is_floating_point() else labels or tuple(str(i) for i in range(known))
    return Pool(x, y, known, names, test, owner_S, owners)


def as_samples(x: Array, y: Array, place: str) -> tuple[Tensor, Tensor]:
    """Arrays as tensors: inputs float32 (whole numbers int64, for embeddings), targets int64 or float32."""
    tensors = []
    advices = ("turn it into numbers", "number the classes from 0, and give their names as labels")
    for name, values, advice in zip("xy", (x, y), advices, strict=True):
        try:
            tensors.append(torch.as_tensor(values).cpu())
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{place}: {name} is not an array of numbers ({error}): {advice}") from error
    x, y = tensors
    x = x.to(torch.float32 if x.is_floating_point() else torch.int64)
    if y.is_floating_point():
        return x, y.float().unsqueeze(1) if y.ndim == 1 else y.float()
    return x, y.long()


def _check_paired(x: Tensor, y: Tensor) -> None:
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise UserError(f"x is {tuple(x.shape)} and y {tuple(y.shape)}: give one row of each per sample")


def classes_of(y: Tensor, classes: int | None, labels: Sequence[str] | None) -> int:
    """How many outputs a model needs: `classes`, one per label, or the largest label + 1; the width where targets are
    numbers, or rows of 0 and 1 (any number of labels each).

    >>> classes_of(torch.tensor([4, 2]), None, None), classes_of(torch.tensor([[0, 1, 1], [0, 0, 0]]), None, None)
    (5, 3)
    """
    if y.is_floating_point():
        return y[0].numel() if len(y) else 1
    if _are_rows_of_labels(y):
        return classes or (len(labels) if labels else y.shape[1])
    found = int(y.max()) + 1 if y.numel() else 0
    return classes or (len(labels) if labels else max(found, 2))


def _are_rows_of_labels(y: Tensor) -> bool:
    return y.ndim == 2 and y.numel() > 0 and bool(((y == 0) | (y == 1)).all())


def check_samples(
    x: Tensor, y: Tensor, classes: int, place: Callable[[int], str], input_shape: Sequence[int] | None = None
) -> None:
    """Refuse samples that cannot be trained on; `place` describes where a row is, for the message."""

    def refuse(bad_S: Tensor, reason: str) -> None:
        rows = bad_S.nonzero().flatten().tolist()
        if rows:
            more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
            raise UserError(f"{place(rows[0])}{more}: {reason}")

    _check_paired(x, y)
    if not len(x):
        raise UserError(f"{place(0)}: there are no samples here; every client needs at least one")
    if input_shape is not None and tuple(x.shape[1:]) != tuple(input_shape):
        shape = tuple(x.shape[1:])
        raise UserError(f"{place(0)}: a sample has shape {shape}, and {tuple(input_shape)} is expected")
    for name, values in (("x", x), ("y", y)):
        if values.is_floating_point():
            refuse((~values.flatten(1).isfinite()).any(1), f"{name} is NaN or infinite; repair or remove the sample")
    if not y.is_floating_point() and not _are_rows_of_labels(y):
        wrong = ((y < 0) | (y >= classes)).view(len(y), -1).any(1)
        refuse(wrong, f"the label is outside 0 to {classes - 1}; renumber it or raise classes")


KINDS = {"own": Own}
