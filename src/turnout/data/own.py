"""A user's own data in memory: tensors (`Own`) or a torch Dataset (`FromDataset`), and the checks of all own data.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from turnout.data.partitioned import MayHaveOwners, Pool
from turnout.data.text_table import number_values
from turnout.errors import UserError
from turnout.inputs import MASK, Inputs, check_inputs, check_positions
from turnout.tasks import IGNORED

Array = Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class Own(MayHaveOwners):
    """Tensors in memory; every owner is a client unless a partition is given.

    x           samples; a dictionary of arrays for a model with several inputs, by the names of its forward
    y           targets: whole numbers are classes, others are numbers to be predicted; None for x["labels"]
    owner       each sample's owner, as a number or a name
    test        a central test set (x, y)
    classes     how many; None for one per label, or the largest target plus one
    labels      the names of the classes

    >>> import torch
    >>> data = Own(torch.zeros(3, 2), torch.tensor([0, 1, 1]), owner=["ann", "bob", "ann"]).load(seed=0)
    >>> data.names, data.examples(torch.arange(2))
    (('ann', 'bob'), tensor([1, 1]))
    """

    x: Array | Mapping[str, Array]
    y: Array | None = None
    owner: Array | Sequence[int] | Sequence[str] | None = None
    test: tuple[Array | Mapping[str, Array], Array | None] | None = None
    classes: int | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test is not None and not (isinstance(self.test, tuple | list) and len(self.test) == 2):
            raise UserError("Own: test is a central test set: give a pair (x, y) of samples and their targets")

    def read(self, data_dir: Path | None = None) -> Pool:
        train = as_samples(self.x, self.y, "Own")
        test = as_samples(*self.test, "Own, test set") if self.test else None
        return checked_pool("Own", "row", train, self.owner, test, self.classes, self.labels)


@dataclass(frozen=True, eq=False)
class FromDataset(MayHaveOwners):
    """A torch `Dataset` (or a list) of samples, or a function that makes one; each sample is read once and kept.

    dataset     the samples, or the function
    owner       a function of a sample's number, a list with one owner per sample, or which part of a sample it is
    x, y        which part of a sample is the input and which the target: places in a tuple, or names in a dictionary;
                several names for a model with several inputs, ("input_ids", "attention_mask")
    test        a data set of the same kind as a central test set
    labels      the names of the classes; None for the data set's own `classes`, if it has them

    Pictures (of Pillow; arrays of bytes, channels last; tensors of bytes, channels first) become numbers from 0 to 1,
    [channels, height, width]; all must be of one size. A target is a whole number or a text, which is a class, or a
    number to predict. Of several inputs, lists of different lengths (tokens) are filled up: inputs with 0, targets with
    -100, and there is an `attention_mask` then.

    >>> data = FromDataset([([0.0, 1.0], "no"), ([1.0, 0.0], "yes")], owner=lambda i: f"client {i}").load()
    >>> data.names, data.labels, data.input_shape
    (('client 0', 'client 1'), ('no', 'yes'), (2,))
    """

    dataset: Dataset[Any] | Callable[[], Dataset[Any]] | Sequence[Any]
    owner: Callable[[int], Any] | int | str | Sequence[Any] | Tensor | np.ndarray | None = None
    x: int | str | tuple[str, ...] = 0
    y: int | str = 1
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
        made, samples = _samples(self.dataset)
        labels = self.labels or tuple(map(str, getattr(made, "classes", ())))
        targets = _part(samples, self.y)
        if not labels and isinstance(targets[0], str):
            labels = number_values(list(map(str, targets)))[1]
        tested = [] if self.test is None else _samples(self.test)[1]
        if isinstance(self.x, tuple | list):
            longest = max(_length(part) for name in self.x for part in _part([*samples, *tested], name))
            train = self._several(samples, labels, longest)
            test = self._several(tested, labels, longest) if tested else None
        else:
            train = _tensors(_part(samples, self.x), targets, labels)
            test = _tensors(_part(tested, self.x), _part(tested, self.y), labels) if tested else None
        owner: Any = self.owner
        if callable(owner):
            owner = [owner(i) for i in range(len(samples))]
        elif isinstance(owner, int | str):
            owner = _part(samples, owner)
        return checked_pool("FromDataset", "sample", train, owner, test, None, labels or None)

    def _several(self, samples: Sequence[Any], labels: Sequence[str], longest: int) -> tuple[Tensor, Tensor]:
        """Samples with several inputs; lists of different lengths are filled up to the longest."""
        names = tuple(self.x) if isinstance(self.x, tuple | list) else ()
        parts = {name: _part(samples, name) for name in names}
        x = {name: _filled(name, values, longest, 0) for name, values in parts.items()}
        length_S = torch.tensor([_length(value) for value in parts[names[0]]])
        if MASK not in x and bool((length_S < longest).any()):
            x[MASK] = (torch.arange(longest) < length_S[:, None]).long()
        return as_samples(
            x, _filled(self.y, _numbered(_part(samples, self.y), labels), longest, IGNORED), "FromDataset"
        )


def _numbered(targets: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """A text is the place of its label."""
    number = {name: i for i, name in enumerate(labels)}
    return [number.get(target, target) if isinstance(target, str) else target for target in targets]


def _length(value: Any) -> int:
    """Of a list of numbers; 0 of anything else."""
    found = torch.as_tensor(value)
    return len(found) if found.ndim == 1 else 0


def _filled(name: int | str, values: Sequence[Any], longest: int, fill: int) -> Tensor:
    """One part of all samples; lists of different lengths are filled up."""
    try:
        found = [_numbers(value) for value in values]
        if all(one.ndim == 1 and len(one) <= longest for one in found) and any(len(one) < longest for one in found):
            found = [torch.nn.functional.pad(one, (0, longest - len(one)), value=fill) for one in found]
        return torch.stack(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"FromDataset: the parts {name!r} of the samples cannot be joined ({error})") from error


def _samples(given: Any) -> tuple[Any, list[Any]]:
    """The data set (or what the function or class gives), and each of its samples."""
    makes = isinstance(given, type) or (callable(given) and not hasattr(given, "__getitem__"))
    made = given() if makes else given
    if not hasattr(made, "__getitem__") and not hasattr(made, "__iter__"):
        raise UserError(f"FromDataset: {made!r} is not a torch Dataset, a list of samples, or a function for one")
    samples = [made[i] for i in range(len(made))] if hasattr(made, "__len__") else list(made)
    if not samples or not isinstance(samples[0], tuple | list | Mapping):
        raise UserError("FromDataset: the data set has no samples that are pairs (input, target) or dictionaries")
    return made, samples


def _part(samples: Sequence[Any], where: int | str) -> list[Any]:
    """One part of each sample: by its place in a tuple, or by its name in a dictionary."""
    try:
        return [sample[where] for sample in samples]
    except (LookupError, TypeError) as error:
        raise UserError(f"FromDataset: a sample has no part {where!r}: set x=, y= and owner=") from error


def _tensors(inputs: Sequence[Any], targets: Sequence[Any], labels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each as one tensor; a text is the place of its label."""
    stacked = []
    for what, values in (("inputs", inputs), ("targets", _numbered(targets, labels))):
        try:
            found = [_numbers(value) for value in values]
            if len({one.dtype for one in found}) > 1:
                raise TypeError("they are whole numbers and others")
            stacked.append(torch.stack(found))
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"FromDataset: {what} cannot be joined ({error}): inputs are pictures or numbers, targets whole "
                "numbers, labels or numbers to predict, all of one shape and kind"
            ) from error
    return as_samples(stacked[0], stacked[1], "FromDataset")


def _numbers(value: Any) -> Tensor:
    """A picture as numbers from 0 to 1 with its channels first, any other value as it is."""
    if hasattr(value, "getbands"):  # a picture of Pillow
        value = np.array(value if value.mode in ("L", "RGB", "I", "F") else value.convert("RGB"))
    found = torch.as_tensor(value)
    if found.dtype != torch.uint8 or found.ndim not in (2, 3):
        return found
    if isinstance(value, np.ndarray) and found.ndim == 3:  # arrays have their channels last, tensors have them first
        found = found.permute(2, 0, 1)
    return (found.unsqueeze(0) if found.ndim == 2 else found).float() / 255


def checked_pool(
    name: str, row: str, train: tuple[Tensor, Tensor], owner: Any, test: tuple[Tensor, Tensor] | None,
    classes: int | None, labels: tuple[str, ...] | None,
) -> Pool:  # fmt: skip
    """A pool of own samples, checked; `name` and `row` are the data set's and a sample's name in messages."""
    x, y = train
    _check_paired(x, y)
    if not len(x):
        raise UserError(f"{name}: there are no samples; every client needs at least one")
    owner_S: Tensor | None = None
    owners: tuple[str, ...] = ()
    if owner is not None:
        if len(owner) != len(y):
            raise UserError(f"{name}: {len(y)} samples and {len(owner)} owners; give one owner per sample")
        listed = owner.tolist() if isinstance(owner, Tensor | np.ndarray) else list(owner)
        plain = [one.item() if isinstance(one, Tensor | np.generic) else one for one in listed]
        if None in plain:
            raise UserError(f"{name}: the owner of {row} {plain.index(None)} is None: every sample needs one")
        owner_S, owners = number_values(list(map(str, plain)))
    known = classes_of(y, classes, labels)

    def place(i: int) -> str:
        whose = "" if owner_S is None else f" (client {owners[int(owner_S[i])]!r})"
        return f"{name}, {row} {i}{whose}"

    check_samples(x, y, known, place)
    if test:
        check_samples(*test, known, lambda i: f"{name}, test {row} {i}", x.shape[1:])
    names = () if y.is_floating_point() else labels or tuple(str(i) for i in range(known))
    return Pool(x, y, known, names, test, owner_S, owners)


def as_samples(x: Array | Mapping[str, Array], y: Array | None, place: str) -> tuple[Tensor, Tensor]:
    """Arrays as tensors: inputs float32 (whole numbers int64, for embeddings), targets int64 or float32.

    Of several inputs, `labels` are the targets if none are given.
    """
    if isinstance(x, Mapping):
        y = x.get("labels") if y is None else y
        if y is None:
            raise UserError(f"{place}: there are no targets: give y, or x['labels']")
        several = {
            name: as_samples(value, y, f"{place}, input {name!r}") for name, value in x.items() if name != "labels"
        }
        inputs = Inputs({name: value for name, (value, _) in several.items()})
        check_inputs(inputs, place)
        target = next(iter(several.values()))[1]
        check_positions(inputs, target, place)
        return inputs, target
    if y is None:
        raise UserError(f"{place}: there are no targets: give y")
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
    several = isinstance(x, Inputs)
    if (len(x.shape) < 2 and not several) or y.ndim < 1 or len(x) != len(y):
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
    named = x.tensors if isinstance(x, Inputs) else {"x": x}
    for name, values in (*named.items(), ("y", y)):
        if values.is_floating_point():
            refuse(
                (~values.reshape(len(values), -1).isfinite()).any(1),
                f"{name} is NaN or infinite; repair or remove the sample",
            )
    if not y.is_floating_point() and not _are_rows_of_labels(y):
        ignored = (y == IGNORED) if y.ndim > 1 else torch.zeros_like(y, dtype=torch.bool)
        wrong = (((y < 0) | (y >= classes)) & ~ignored).view(len(y), -1).any(1)
        refuse(wrong, f"the label is outside 0 to {classes - 1}; renumber it or raise classes")


KINDS = {"own": Own, "from-dataset": FromDataset}
