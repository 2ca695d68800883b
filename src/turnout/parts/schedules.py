"""Learning-rate schedules: functions of the clock, the rounds since the objective last shifted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from turnout.errors import check_part, check_settings


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
class Cosine:
    """η(t) = η0 (least + (1 - least) (1 + cos(π t / rounds)) / 2): half a cosine over the rounds, and from then on the
    last rate.

    rounds   how many rounds it takes; with a warm-up, those after it
    least    the share of η0 that it tends to

    >>> [round(Cosine(rounds=4).rate(1.0, clock), 3) for clock in (0, 2, 3, 9)]
    [1.0, 0.5, 0.146, 0.146]
    """

    rounds: int
    least: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self, rounds="[1, inf)", least="[0, 1]")

    def rate(self, lr: float, clock: int) -> float:
        wave = (1 + math.cos(math.pi * min(clock, self.rounds - 1) / self.rounds)) / 2
        return lr * (self.least + (1 - self.least) * wave)


@dataclass(frozen=True)
class WarmUp:
    """The rate grows in equal steps for some rounds, then another schedule begins.

    rounds   the rounds of the warm-up; in the last of them the rate is the next schedule's first
    then     the next schedule, whose clock begins at 0

    >>> [WarmUp(rounds=2, then=InverseClock()).rate(1.0, clock) for clock in (0, 1, 2, 3)]
    [0.5, 1.0, 1.0, 0.5]
    """

    rounds: int
    then: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        check_settings(self, rounds="[1, inf)")
        check_part("algorithm.local.schedule.then", self.then, Schedule, "Cosine(rounds=100)")

    def rate(self, lr: float, clock: int) -> float:
        if clock >= self.rounds:
            return self.then.rate(lr, clock - self.rounds)
        return self.then.rate(lr, 0) * (clock + 1) / self.rounds


@dataclass(frozen=True)
class Custom:
    """Any `function` (lr, clock) -> rate."""

    function: Callable[[float, int], float]

    def rate(self, lr: float, clock: int) -> float:
        return float(self.function(lr, clock))


KINDS = {
    "constant": Constant,
    "inverse-clock": InverseClock,
    "theory-rate": TheoryRate,
    "cosine": Cosine,
    "warm-up": WarmUp,
    "custom": Custom,
}
