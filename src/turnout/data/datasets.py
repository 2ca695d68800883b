"""`FromDataset`: a torch Dataset, or any list of samples, read once and split by owner.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from turnout.data.own import as_samples, checked_pool
from turnout.data.partitioned import MayHaveOwners, Pool
from turnout.data.text_table import number_values
from turnout.errors import UserError, nearest

Part = int | str  # a part of a sample: its place in a tuple, or its name in a dictionary
Owner = Callable[[int], Any] | Part | Sequence[Any] | Tensor | np.ndarray | None


@dataclass(frozen=True, eq=False)
class FromDataset(MayHaveOwners):
    """A torch `Dataset` (or a list) of samples, or a function that makes one; each sample is read once and kept.

    dataset     the samples, or the function
    owner       a function of a sample's number, a list with one owner per sample, or which part of a sample it is
    x, y        which part of a sample is the input and which the target: places in a tuple, or names in a dictionary
    test        a data set of the same kind as a central test set
    labels      the names of the classes; None for the data set's own `classes`, if it has them

    Pictures (of Pillow; arrays of bytes, channels last; tensors of bytes, channels first) become numbers from 0 to 1,
    [channels, height, width]; all must be of one size. A target is a whole number or a text, which is a class, or a
    number to predict.

    >>> data = FromDataset([([0.0, 1.0], "no"), ([1.0, 0.0], "yes")], owner=lambda i: f"client {i}").load()
    >>> data.names, data.labels, data.input_shape
    (('client 0', 'client 1'), ('no', 'yes'), (2,))
    """

    dataset: Dataset[Any] | Callable[[], Dataset[Any]] | Sequence[Any]
    owner: Owner = None
    x: Part = 0
    y: Part = 1
    test: Dataset[Any] | Callable[[], Dataset[Any]] | Sequence[Any] | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dataset", "test"):  # a list is many values, an object is one: in a run's file it is a hash
            if isinstance(given := getattr(self, name), list | tuple):
                object.__setattr__(self, name, Subset(cast(Dataset[Any], given), range(len(given))))

    def read(self, data_dir: Path | None = None) -> Pool:
        return self._pool

    @cached_property
    def _pool(self) -> Pool:
        """All samples in tensors; kept, since a data set may draw other samples the next time."""
        made, samples = _read(self.dataset)
        if not samples:
            raise UserError("FromDataset: the data set has no samples; every client needs at least one")
        inputs, targets = self._parts(samples)
        labels, own = self.labels, getattr(made, "classes", None)
        if not labels and isinstance(targets[0], str):
            labels = number_values([str(target) for target in targets])[1]
        elif not labels and own and isinstance(own, Iterable) and not isinstance(own, str):
            labels = tuple(map(str, own))
        x, y = _tensors(inputs, targets, labels, "sample")
        test = None
        if self.test is not None:
            test = _tensors(*self._parts(_read(self.test)[1]), labels, "test sample")
        return checked_pool("FromDataset", "sample", x, y, self._owners(samples), test, None, labels)

    def _parts(self, samples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        inputs, targets = ([_part(s, where, i) for i, s in enumerate(samples)] for where in (self.x, self.y))
        return inputs, targets

    def _owners(self, samples: Sequence[Any]) -> list[Any] | None:
        if self.owner is None:
            return None
        if callable(self.owner):
            listed = []
            for i in range(len(samples)):
                try:
                    listed.append(self.owner(i))
                except Exception as error:
                    raise UserError(
                        f"FromDataset: the function that gives the owner of sample {i} fails "
                        f"({type(error).__name__}: {error}): it is called with the number of a sample, from 0 on"
                    ) from error
        elif isinstance(self.owner, Part):
            listed = [_part(sample, self.owner, i) for i, sample in enumerate(samples)]
        else:
            listed = list(self.owner)
        plain = [owner.item() if isinstance(owner, Tensor | np.generic) else owner for owner in listed]
        if None in plain:
            raise UserError(f"FromDataset: the owner of sample {plain.index(None)} is None: every sample needs one")
        return plain


def _read(given: Any) -> tuple[Any, list[Any]]:
    """The data set, and each of its samples; one without a length is read to its end."""
    makes = isinstance(given, type) or (callable(given) and not hasattr(given, "__getitem__"))
    made = given() if makes else given
    if isinstance(made, str) or not (hasattr(made, "__getitem__") or hasattr(made, "__iter__")):
        raise UserError(
            f"FromDataset: {made!r} is not a data set: give a torch Dataset, a list of samples, or a function that "
            "makes one"
        )
    by_number = hasattr(made, "__len__") and hasattr(made, "__getitem__")
    return made, [made[i] for i in range(len(made))] if by_number else list(made)


def _part(sample: Any, where: Part, i: int) -> Any:
    """A part of a sample: by its name in a dictionary, or by its place in a tuple or list."""
    if isinstance(sample, Mapping):
        if where not in sample:
            names = [str(name) for name in sample]
            hint = nearest(str(where), names)
            raise UserError(f"FromDataset: sample {i} has no part {where!r}: {hint}; set x=, y= and owner=")
        return sample[where]
    if not isinstance(sample, tuple | list):
        kind = type(sample).__name__
        raise UserError(f"FromDataset: sample {i} is a {kind}: it must be a pair (input, target), or a dictionary")
    if not isinstance(where, int) or where >= len(sample):
        raise UserError(f"FromDataset: sample {i} has no part {where!r}: it has {len(sample)}, counted from 0")
    return sample[where]


def _tensors(
    inputs: Sequence[Any], targets: Sequence[Any], labels: tuple[str, ...] | None, what: str
) -> tuple[Tensor, Tensor]:
    values = [_numbers(value, f"{what} {i}") for i, value in enumerate(inputs)]
    for i, value in enumerate(values):
        if value.shape != values[0].shape:
            raise UserError(
                f"FromDataset: {what} {i} has shape {tuple(value.shape)}, and {what} 0 {tuple(values[0].shape)}: all "
                "must be alike; resize or cut them in the data set"
            )
    number = {name: i for i, name in enumerate(labels or ())}
    kinds = [_target(target, number, f"{what} {i}") for i, target in enumerate(targets)]
    for i, value in enumerate(kinds):
        if value.is_floating_point() != kinds[0].is_floating_point() or value.shape != kinds[0].shape:
            both = f"its target is {targets[i]!r}, and that of {what} 0 {targets[0]!r}"
            raise UserError(f"FromDataset, {what} {i}: {both}: give all in the same way")
    return as_samples(torch.stack(values), torch.stack(kinds), "FromDataset") if values else (torch.empty(0),) * 2


def _target(target: Any, number: Mapping[str, int], place: str) -> Tensor:
    if isinstance(target, str) and target in number:
        return torch.tensor(number[target])
    try:
        return torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        known = f", and known are {', '.join(number)}" if number and isinstance(target, str) else ""
        raise UserError(
            f"FromDataset, {place}: its target is {target!r}{known}: give a whole number or a text for a class, or a "
            "number to predict"
        ) from error


def _numbers(value: Any, place: str) -> Tensor:
    """An input as numbers: a picture from 0 to 1 with its channels first, any other input as it is."""
    if hasattr(value, "getbands"):  # a picture of Pillow
        value = np.array(value if value.mode in ("L", "RGB", "I", "F") else value.convert("RGB"))
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"FromDataset, {place}: {value!r} is neither a picture nor numbers: turn it into a tensor in the data set"
        ) from error
    if found.dtype != torch.uint8 or found.ndim not in (2, 3):
        return found
    if found.ndim == 2:
        found = found.unsqueeze(0)
    elif isinstance(value, np.ndarray):  # arrays have their channels last, tensors have them first
        found = found.permute(2, 0, 1)
    return found.float() / 255


KINDS = {"from-dataset": FromDataset}
