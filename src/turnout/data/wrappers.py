"""Data sets around another one in one pool: `Noisy` adds noise, `LabelFlip` and `Backdoor` are attacks on the data.

Shape letters: N clients of the population, C noisy clients, H hostile clients, R rows, S samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.federation import DataSpec, Pooled
from turnout.errors import UserError
from turnout.rng import rng
from turnout.world.attacks import Share, check_attackers, hostile_clients


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
    std         standard deviation of the noise; its authors' code has 3.0 for MNIST and 0.2 for CIFAR-10
    low, high   noisy samples are cut to this range
    """

    data: DataSpec
    share: float = 0.2
    std: float = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.std < 0 or self.low >= self.high:
            raise UserError("Noisy needs a share in [0, 1], std >= 0 and low < high")

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        clean = _load_pooled(self.data, seed, data_dir, "Noisy")
        if not clean.x.is_floating_point():
            raise UserError("Noisy needs samples of numbers, not of characters or words")
        noisy_C = self.clients(clean.clients, seed)
        row_R, _ = clean.train_rows.take(noisy_C)
        g = rng(seed, "noise")
        noise = torch.randn(len(row_R), *clean.input_shape, generator=g).mul_(self.std)
        x = clean.x.clone()
        x[row_R] = noise.add_(x[row_R]).clamp_(self.low, self.high)
        noisy_N = torch.zeros(clean.clients, dtype=torch.bool).index_fill(0, noisy_C, True)
        return replace(clean, x=x, noisy=noisy_N)

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
    return replace(clean, noisy=hostile_N), clean.train_rows.take(hostile_H)[0]


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


KINDS = {"noisy": Noisy, "label-flip": LabelFlip, "backdoor": Backdoor}
