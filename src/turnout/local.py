"""What one client does with its data in a round: optimizer, amount of work, batch size, learning-rate schedule.

Optimizers and schedules are written for one client's row and work for a chunk of rows alike.

Shape letters: c clients of a chunk, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.errors import Mistake
from turnout.fitting import check_part
from turnout.types import Tensors


class Optimizer(Protocol):
    """A local optimizer: its slots are matrices like the parameters, zero at first, updated in place."""

    @property
    def lr(self) -> float: ...

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state matrices it needs besides the parameters."""
        ...

    @property
    def moments(self) -> str:
        """What becomes of the slots when a round ends: "fresh" (zero again next time), "local" (kept by the client) or
        "federated" (averaged with the weights; personal columns stay home); "auto" is settled before round 0."""
        ...

    @property
    def carries_count(self) -> bool:
        """Whether the number of steps made goes on from round to round, as the moments do."""
        ...

    @property
    def linear(self) -> bool:
        """Whether the steps are sums of the gradients, so that a client's path tells their mean."""
        ...

    def step(self, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: float) -> None:
        """One step in place; `count_c` is the number of steps made, this one included."""
        ...

    def progress(self, steps_C: Tensor) -> Tensor:
        """How far that many steps go, in gradients: FedNova's normaliser a_k (plain SGD: the steps themselves)."""
        ...


@dataclass(frozen=True)
class SGD:
    """x <- x - lr g, with momentum and weight decay as options.

    >>> SGD(lr=0.1, momentum=0.5).progress(torch.tensor([0, 1, 2]))
    tensor([0.0000, 1.0000, 2.5000], dtype=torch.float64)
    """

    linear: ClassVar[bool] = True

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise Mistake(f"the learning rate must be above 0, not {self.lr}: set algorithm.local.optimizer.lr")
        if not 0 <= self.momentum < 1:
            raise Mistake(f"momentum must be in [0, 1), not {self.momentum}: set algorithm.local.optimizer.momentum")
        if self.weight_decay < 0:
            raise Mistake(f"weight decay must not be negative, but is {self.weight_decay}")

    moments: ClassVar[str] = "fresh"
    carries_count: ClassVar[bool] = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def step(self, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: float) -> None:
        if self.weight_decay:
            grad_cP.add_(x_cP, alpha=self.weight_decay)
        if self.momentum:
            grad_cP = slots["momentum"].mul_(self.momentum).add_(grad_cP)
        x_cP.add_(grad_cP, alpha=-lr)

    def progress(self, steps_C: Tensor) -> Tensor:
        """With momentum ρ the s gradients' coefficients sum to (s - ρ (1 - ρ^s) / (1 - ρ)) / (1 - ρ)."""
        steps, rho = steps_C.to(torch.float64), self.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


class Schedule(Protocol):
    """The learning rate as a function of the clock: rounds since the objective last shifted."""

    def rate(self, lr: float, clock: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """η(t) = η0."""

    def rate(self, lr: float, clock: int) -> float:
        return lr


@dataclass(frozen=True)
class InverseClock:
    """Paper 000's staircase: η(t) = η0 / (clock + 1).

    >>> [InverseClock().rate(1.0, clock) for clock in (0, 1, 3)]
    [1.0, 0.5, 0.25]
    """

    def rate(self, lr: float, clock: int) -> float:
        return lr / (clock + 1)


@dataclass(frozen=True)
class TheoryRate:
    """Theorem 3.1 of paper 000: η_τ = 16 E / (μ E[Σ p s]) · 1 / (τ E + γ); the optimizer's own lr is not used.

    `expected_work` is E[Σ_k p_τ^k s_τ^k], `strong_convexity` μ, `full_work` E, `gamma` γ.

    >>> TheoryRate(strong_convexity=2.0, expected_work=4.0, full_work=5, gamma=100.0).rate(1.0, clock=0)
    0.1
    """

    strong_convexity: float
    expected_work: float
    full_work: float
    gamma: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise Mistake(f"theory-rate: {name} must be a number above 0, not {value}: set it in the schedule")

    def rate(self, lr: float, clock: int) -> float:
        start = 16 * self.full_work / (self.strong_convexity * self.expected_work)
        return start / (clock * self.full_work + self.gamma)


@dataclass(frozen=True)
class Custom:
    """Any function (lr, clock) -> rate."""

    function: Callable[[float, int], float]

    def rate(self, lr: float, clock: int) -> float:
        return float(self.function(lr, clock))


@dataclass(frozen=True)
class Local:
    """Local training: at most `epochs` passes over the client's data, or at most `steps` mini-batches.

    growing_batch: batches of B_t = B_0 · (t + 1) samples (paper 003, §5, whose rounds start at 1), so that the updates
    of friends become alike; never more than a client's data.
    """

    optimizer: Optimizer = field(default_factory=SGD)
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 20
    schedule: Schedule = field(default_factory=Constant)
    growing_batch: bool = False

    def __post_init__(self) -> None:
        check_part("algorithm.local.optimizer", self.optimizer, Optimizer, "SGD(lr=0.1)")
        check_part("algorithm.local.schedule", self.schedule, Schedule, "InverseClock()")
        if self.epochs is not None and self.steps is not None:
            raise Mistake("local work is asked for both in epochs and in steps: give algorithm.local one of the two")
        if self.full_work < 1:
            raise Mistake(
                f"local work must be at least 1 unit, not {self.full_work}: set algorithm.local.epochs or .steps"
            )
        if self.batch_size < 1:
            raise Mistake(f"the batch size must be at least 1, not {self.batch_size}: set algorithm.local.batch_size")

    @property
    def full_work(self) -> int:
        """E: the units of work asked for (one epoch where nothing is said)."""
        if self.steps is not None:
            return self.steps
        return 1 if self.epochs is None else self.epochs

    def batch_at(self, t: int, most: int) -> int:
        """The batch size of round t, for clients of at most `most` samples.

        >>> [Local(batch_size=5, growing_batch=True).batch_at(t, most=20) for t in (0, 1, 9)]
        [5, 10, 20]
        """
        if not self.growing_batch:
            return self.batch_size
        return min(self.batch_size * (t + 1), max(most, self.batch_size))

    def full_steps(self, per_epoch_C: Tensor) -> Tensor:
        """Complete work of each client in mini-batches."""
        if self.steps is not None:
            return torch.where(per_epoch_C > 0, self.steps, 0)
        return per_epoch_C * self.full_work
