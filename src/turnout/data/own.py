"""A user's own data in memory: tensors, with an owner for each sample.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from turnout.data.check import Array, as_samples, check_paired, check_samples, classes_of
from turnout.data.partition import Partition
from turnout.data.partitioned import Partitioned, Pool
from turnout.data.text_table import number_values
from turnout.errors import UserError


@dataclass(frozen=True, eq=False)
class Own(Partitioned):
    """Tensors in memory: samples, targets and, where there are any, each sample's owner (numbers or names).

    Whole-number targets are classes (as many as `classes`, or the largest plus one), others are numbers to be
    predicted. `test` is a central test set (x, y). Every owner is a client unless a partition is given.

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
    clients: int | None = field(default=None, kw_only=True)
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test is not None and not (isinstance(self.test, tuple | list) and len(self.test) == 2):
            raise UserError("Own: test is a central test set: give a pair (x, y) of samples and their targets")

    def read(self, data_dir: Path | None = None) -> Pool:
        x, y = as_samples(self.x, self.y, "Own")
        check_paired(x, y)
        if not len(x):
            raise UserError("Own: there are no samples; every client needs at least one")
        test = as_samples(*self.test, "Own, test set") if self.test else None
        owner_S, owners = self._owners(len(y))
        known = classes_of(y, self.classes, self.labels)
        check_samples(x, y, known, lambda row: _place(row, owner_S, owners))
        if test:
            check_samples(*test, known, lambda row: f"row {row} of the test set", x.shape[1:])
        names = () if y.is_floating_point() else self.labels or tuple(str(i) for i in range(known))
        return Pool(x, y, known, names, test, owner_S, owners)

    def _owners(self, samples: int) -> tuple[Tensor | None, tuple[str, ...]]:
        if self.owner is None:
            return None, ()
        if len(self.owner) != samples:
            raise UserError(f"Own: {samples} samples and {len(self.owner)} owners; give one owner per sample")
        given = self.owner.cpu().numpy() if isinstance(self.owner, Tensor) else self.owner
        if isinstance(given, np.ndarray) and given.dtype.kind == "i" and given.ndim == 1:  # no text for every sample
            numbers, owner_S = np.unique(given, return_inverse=True)
            return torch.from_numpy(owner_S.astype(np.int64)), tuple(map(str, numbers.tolist()))
        return number_values([str(owner) for owner in (given.tolist() if isinstance(given, np.ndarray) else given)])


def _place(row: int, owner_S: Tensor | None, owners: Sequence[str]) -> str:
    return f"row {row}" if owner_S is None else f"row {row} (client {owners[int(owner_S[row])]!r})"


KINDS = {"own": Own}
