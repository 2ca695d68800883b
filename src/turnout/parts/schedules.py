"""Learning-rate schedules: functions of the clock, the rounds since the objective last shifted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from turnout.errors import check_settings


class Schedule(Protocol):
    """The learning rate as a function of the clock: rounds since the objective last shifted."""

    def rate(self, lr: float, clock: int) -> float:
        """The rate at this clock, given the optimizer's."""


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

    strong_convexity  μ
    expected_work     E[Σ_k p_τ^k s_τ^k]
    full_work         E
    gamma             γ

    >>> TheoryRate(strong_convexity=2.0, expected_work=4.0, full_work=5, gamma=100.0).rate(1.0, clock=0)
    0.1
    """

    strong_convexity: float
    expected_work: float
    full_work: float
    gamma: float

    def __post_init__(self) -> None:
        check_settings(self, **dict.fromkeys(vars(self), "(0, inf)"))

    def rate(self, lr: float, clock: int) -> float:
        start = 16 * self.full_work / (self.strong_convexity * self.expected_work)
        return start / (clock * self.full_work + self.gamma)


@dataclass(frozen=True)
class Custom:
    """Any `function` (lr, clock) -> rate."""

    function: Callable[[float, int], float]

    def rate(self, lr: float, clock: int) -> float:
        return float(self.function(lr, clock))


KINDS = {"constant": Constant, "inverse-clock": InverseClock, "theory-rate": TheoryRate, "custom": Custom}
