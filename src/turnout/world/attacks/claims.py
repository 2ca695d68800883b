"""Lies about work done and samples held: what weights are made from.

Shape letters: C clients of the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.types import Turnout
from turnout.world.attacks.base import Attack


@dataclass(frozen=True)
class ClaimWork(Attack):
    """Claims to have finished this `fraction` of the work, whatever it did.

    A small one has its update scaled up under scheme C (E / s); 1 makes unfinished work count as complete under A.
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(
                f"ClaimWork(fraction={self.fraction!r}): above 0, at most 1; a server believes nobody who claims more "
                "than was asked"
            )

    def work(self, turnout: Turnout, hostile_C: Tensor) -> Turnout:
        return turnout.claiming(hostile_C, self.fraction)


@dataclass(frozen=True)
class ClaimExamples(Attack):
    """Claims to hold `factor` times the samples it has: its share, and so its votes, grow with it."""

    factor: float = 100.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise UserError(f"ClaimExamples(factor={self.factor!r}): above 0")

    def examples(self, examples_C: Tensor, hostile_C: Tensor) -> Tensor:
        claimed_C = (examples_C.double() * self.factor).round().clamp(min=1).to(examples_C.dtype)
        return torch.where(hostile_C.to(examples_C.device) & (examples_C > 0), claimed_C, examples_C)


KINDS = {"claim-work": ClaimWork, "claim-examples": ClaimExamples}
