"""Attacks on the data: `LabelFlip` and `Backdoor` wrap any data set in one pool, as `Noisy` does.

The clients are those that attacks on updates draw from the same seed (turnout/world/attacks).

Shape letters: N clients of the population, R rows, S samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.federation import DataSpec
from turnout.data.pooled import Pooled
from turnout.errors import UserError
from turnout.rng import rng
from turnout.world.attacks import Share, check_attackers, hostile_clients


def poisoned(data: DataSpec, attackers: Share, seed: int, data_dir: Path | None, what: str) -> tuple[Pooled, Tensor]:
    """The clean data, with the hostile clients marked as spoilt, and their training rows."""
    clean = data.load(seed, data_dir)
    if not isinstance(clean, Pooled):
        raise UserError(f"{what} needs a data set in one pool, not {type(data).__name__}, made on demand")
    if clean.y.is_floating_point() or clean.y.ndim != 1:
        raise UserError(f"{what} needs one label a sample, not numbers to predict")
    hostile_H = hostile_clients(attackers, clean.clients, seed)
    hostile_N = torch.zeros(clean.clients, dtype=torch.bool).index_fill(0, hostile_H, True)
    return replace(clean, noisy_N=hostile_N), clean.train_rows.take(hostile_H)[0]


@dataclass(frozen=True)
class LabelFlip:
    """The attackers' training labels are turned round: y becomes L − 1 − y of L classes (Fang et al., USENIX Security
    2020). Test samples stay as they are. `attackers` is a share of the clients, or which."""

    data: DataSpec
    attackers: Share = 0.2

    def __post_init__(self) -> None:
        check_attackers("LabelFlip: attackers", self.attackers)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        clean, row_R = poisoned(self.data, self.attackers, seed, data_dir, "LabelFlip")
        y = clean.y.clone()
        y[row_R] = clean.classes - 1 - y[row_R]
        return replace(clean, y=y)


@dataclass(frozen=True)
class Backdoor:
    """Some of the attackers' training samples get a mark and the label `target`: a model that learns it says so of
    every sample with the mark (Bagdasaryan et al., AISTATS 2020; the mark as in Gu et al. 2017).

    The mark: the last `side` x `side` pixels of an image, or the last `side` columns of a row of numbers, are `value`.
    `part` is how much of the attackers' samples has it. `marked_test` has test samples with the mark.
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
        clean, row_R = poisoned(self.data, self.attackers, seed, data_dir, "Backdoor")
        if self.target >= clean.classes or not clean.x.is_floating_point():
            raise UserError(f"Backdoor(target={self.target}) needs samples of numbers, and labels up to its target")
        chosen_R = torch.rand(len(row_R), generator=rng(seed, "backdoor")) < self.part
        row_R = row_R[chosen_R]
        x, y = clean.x.clone(), clean.y.clone()
        x[row_R], y[row_R] = self.marked(x[row_R]), self.target
        return replace(clean, x=x, y=y)

    def marked(self, x: Tensor) -> Tensor:
        """Samples with the mark."""
        x = x.clone()
        if x.ndim >= 3:
            x[..., -self.side :, -self.side :] = self.value
        else:
            x[..., -self.side :] = self.value
        return x

    def marked_test(self, seed: int = 0, data_dir: Path | None = None) -> Tensor:
        """The central test samples of other labels than the target, with the mark [S, ...]: the share that a model
        takes for the target is how far the attack got."""
        central = self.load(seed, data_dir).central_test()
        if central is None:
            raise UserError("this data has no test samples to put the mark on")
        x, y = central
        return self.marked(x[y != self.target])


KINDS = {"label-flip": LabelFlip, "backdoor": Backdoor}
