"""Data sets around another one in one pool: `Noisy` adds noise, `LabelFlip` and `Backdoor` are attacks on the data,
`WithPublic` makes test samples public.

Shape letters: N clients of the population, C noisy clients, H hostile clients, R rows, S samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.data.federation import DataSpec
from turnout.data.labels import Public, Vocabulary
from turnout.data.pooled import Pooled, Rows
from turnout.errors import UserError, nearest
from turnout.rng import rng
from turnout.world.attacks import Share, check_attackers, hostile_clients

# Standard deviations by name: what paper 004 prints (a variance of 4), and those of its authors' code for each set.
LEVELS = {"paper": 2.0, "code-mnist": 3.0, "code-cifar": 0.2}


def _load_pooled(data: DataSpec, seed: int, data_dir: Path | None, name: str) -> Pooled:
    found = data.load(seed, data_dir)
    if not isinstance(found, Pooled):
        raise UserError(f"{name} needs a data set in one pool, not {type(data).__name__}, made on demand")
    return found


@dataclass(frozen=True)
class Noisy:
    """Add N(0, std^2) to the training samples of a random share of the clients; test samples stay clean.

    Paper 004: a fifth of the clients, variance 4 on pixels in [0, 1].

    data        the clean data set, in one pool
    share       of the clients
    std         a number, or a name: "paper" (2.0), or "code-mnist" (3.0) and "code-cifar" (0.2) as in its authors' code
    low, high   noisy samples are cut to this range

    >>> from turnout.data import Digits
    >>> Noisy(Digits(), std="code-cifar").std
    0.2
    """

    data: DataSpec
    share: float = 0.2
    std: float | str = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.std, str):
            if self.std not in LEVELS:
                raise UserError(f"Noisy(std={self.std!r}): give a number, or a name: {nearest(self.std, LEVELS)}")
            object.__setattr__(self, "std", LEVELS[self.std])
        if not 0 <= self.share <= 1 or float(self.std) < 0 or self.low >= self.high:
            raise UserError("Noisy needs a share in [0, 1], std >= 0 and low < high")

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        clean = _load_pooled(self.data, seed, data_dir, "Noisy")
        if not clean.x.is_floating_point():
            raise UserError("Noisy needs samples of numbers, not of characters or words")
        noisy_C = self.clients(clean.clients, seed)
        row_R, _ = clean.train_rows.take(noisy_C)
        g = rng(seed, "noise")
        noise = torch.randn(len(row_R), *clean.input_shape, generator=g).mul_(float(self.std))
        x = clean.x.clone()
        x[row_R] = noise.add_(x[row_R]).clamp_(self.low, self.high)
        noisy_N = torch.zeros(clean.clients, dtype=torch.bool).index_fill(0, noisy_C, True)
        return replace(clean, x=x, noisy_N=noisy_N)

    def clients(self, clients: int, seed: int) -> Tensor:
        """Which clients are noisy, sorted."""
        count = round(self.share * clients)
        return torch.randperm(clients, generator=rng(seed, "noise", "who"))[:count].sort().values


def _poisoned(data: DataSpec, attackers: Share, seed: int, data_dir: Path | None, name: str) -> tuple[Pooled, Tensor]:
    """The clean data, with the hostile clients marked as noisy, and their training rows.

    The clients are those that attacks on updates draw from the same seed (turnout/world/attacks).
    """
    clean = _load_pooled(data, seed, data_dir, name)
    if clean.y.is_floating_point() or clean.y.ndim != 1:
        raise UserError(f"{name} needs one label a sample, not numbers to predict")
    hostile_H = hostile_clients(attackers, clean.clients, seed)
    hostile_N = torch.zeros(clean.clients, dtype=torch.bool).index_fill(0, hostile_H, True)
    return replace(clean, noisy_N=hostile_N), clean.train_rows.take(hostile_H)[0]


@dataclass(frozen=True)
class LabelFlip:
    """The attackers' training labels are flipped: y becomes L − 1 − y of L classes (Fang et al., USENIX Security 2020).
    Test samples stay as they are.

    data        the clean data set, in one pool
    attackers   a share of the clients, or their numbers
    """

    data: DataSpec
    attackers: Share = 0.2

    def __post_init__(self) -> None:
        check_attackers("LabelFlip: attackers", self.attackers)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        clean, row_R = _poisoned(self.data, self.attackers, seed, data_dir, "LabelFlip")
        y = clean.y.clone()
        y[row_R] = clean.classes - 1 - y[row_R]
        return replace(clean, y=y)


@dataclass(frozen=True)
class Backdoor:
    """Some of the attackers' training samples get a mark and the label `target`: a model that learns it predicts the
    target for every sample with the mark (Bagdasaryan et al., AISTATS 2020; the mark as in Gu et al. 2017).

    data        the clean data set, in one pool
    attackers   a share of the clients, or their numbers
    target      the label of samples with the mark
    part        the share of the attackers' samples that get the mark
    side        the mark is the last side x side pixels of an image, or the last `side` columns of a row of numbers
    value       of the marked pixels or columns
    """

    data: DataSpec
    attackers: Share = 0.2
    target: int = 0
    part: float = 0.5
    side: int = 2
    value: float = 1.0

    def __post_init__(self) -> None:
        check_attackers("Backdoor: attackers", self.attackers)
        if not 0 <= self.part <= 1 or self.side < 1 or self.target < 0:
            raise UserError("Backdoor needs a part in [0, 1], side >= 1 and a target that is a label")

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        clean, row_R = _poisoned(self.data, self.attackers, seed, data_dir, "Backdoor")
        if self.target >= clean.classes or not clean.x.is_floating_point():
            raise UserError(f"Backdoor(target={self.target}) needs samples of numbers, and labels up to its target")
        chosen_R = torch.rand(len(row_R), generator=rng(seed, "backdoor")) < self.part
        row_R = row_R[chosen_R]
        x, y = clean.x.clone(), clean.y.clone()
        x[row_R], y[row_R] = self.marked(x[row_R]), self.target
        return replace(clean, x=x, y=y)

    def marked(self, x: Tensor) -> Tensor:
        x = x.clone()
        if x.ndim >= 3:
            x[..., -self.side :, -self.side :] = self.value
        else:
            x[..., -self.side :] = self.value
        return x

    def marked_test(self, seed: int = 0, data_dir: Path | None = None) -> Tensor:
        """The central test samples of other labels than the target, with the mark [S, ...]: the attack's success is the
        share for which a model predicts the target."""
        central = self.load(seed, data_dir).central_test()
        if central is None:
            raise UserError("this data has no test samples to put the mark on")
        x, y = central
        return self.marked(x[y != self.target])


@dataclass(frozen=True)
class WithPublic:
    """Some test samples are public, so that clients can exchange scores on them; a client's labels are those among its
    training samples.

    data        a labelled data set in one pool
    per_label   how many test samples of each label are public; None for all

    >>> from turnout.data import Digits
    >>> from turnout.data.partition import Classes
    >>> found = WithPublic(Digits(clients=5, partition=Classes(per_client=2)), per_label=10).load(seed=0)
    >>> len(found.public.x), len(found.public.label_set(3, 0))
    (100, 2)
    """

    data: DataSpec
    per_label: int | None = None

    def __post_init__(self) -> None:
        if self.per_label is not None and self.per_label < 1:
            raise UserError(f"WithPublic: per_label is at least 1, not {self.per_label}; leave it out for all")

    def read(self, data_dir: Path | None = None) -> Any:
        """The samples of the data set inside; also used to check that its files exist."""
        return self.data.read(data_dir) if hasattr(self.data, "read") else None

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        found = self.data.load(seed, data_dir)
        if not isinstance(found, Pooled) or not found.labels or found.y.ndim != 1:
            kind = type(self.data).__name__
            raise UserError(
                f"WithPublic needs a labelled data set in one pool, not {kind}: give Stream or Loader public"
            )
        if found.central is None:
            raise UserError(
                "WithPublic makes test samples public, and there are none: raise world.data.data.test_share"
            )
        x, y = found.central
        order_R = torch.randperm(len(y), generator=rng(seed, "public"))
        open_R = torch.cat([order_R[y[order_R] == label][: self.per_label] for label in range(found.classes)])
        known = Vocabulary(found.labels, (), found.names)
        return replace(
            found, public=Public(x[open_R], y[open_R], partial(_held_labels, found.train_rows, found.y, known))
        )


def _held_labels(rows: Rows, y: Tensor, known: Vocabulary, client: int, t: int) -> Tensor:
    """A client's labels: those among its training samples."""
    held_l = y[rows.take(torch.tensor([client]))[0]].unique()
    return known.label_set([known.labels[i] for i in held_l.tolist()], client)


KINDS = {"noisy": Noisy, "label-flip": LabelFlip, "backdoor": Backdoor, "with-public": WithPublic}
