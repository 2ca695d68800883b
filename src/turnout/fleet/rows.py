"""The rows of a log as numbers, before they are rounds.

Shape letters: N rows of the log, A rows of the record, M clients, T rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from turnout.fleet.cells import Clock

MOST_ROUNDS = 1_000_000
Form = Literal["rounds", "check-ins", "intervals"]


@dataclass(frozen=True)
class Effort:
    """What a full round costs each client in seconds, over its link and in training; and the most it may take."""

    link_M: np.ndarray
    training_M: np.ndarray
    deadline: float

    def work(self, client_A: np.ndarray, there_A: np.ndarray) -> np.ndarray:
        """The share of the work that a client finishes that is there for so many seconds."""
        left_A = np.minimum(there_A, self.deadline) - self.link_M[client_A]
        return np.clip(left_A / self.training_M[client_A], 0, 1)


@dataclass(frozen=True)
class LogRows:
    """Row n is about client `names[code_N[n]]` and stands in line `line_N[n]`; a number that is a fault is NaN.

    form        what a row is: a client asked in a round, a client that came at `time_N`, or one that was there from
                `time_N` to `end_N` (infinite: to the end of the log)
    effort      what a round costs, where devices' speeds are known: decides how much work is done while one is there
    own_form    whether the log is in Turnout's own form, whose rounds are counted from 0
    said        what was guessed so far
    """

    path: str
    form: Form
    names: tuple[str, ...]
    code_N: np.ndarray
    line_N: np.ndarray
    round_N: np.ndarray | None = None
    time_N: np.ndarray | None = None
    end_N: np.ndarray | None = None
    work_N: np.ndarray | None = None
    examples_N: np.ndarray | None = None
    clock: Clock | None = None
    effort: Effort | None = None
    own_form: bool = False
    said: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rounds:
    """Rows as (round, client, work), and when rounds begin; `said` is what was assumed on the way."""

    round_A: np.ndarray
    code_A: np.ndarray
    work_A: np.ndarray
    rounds: int
    start_T: np.ndarray | None
    every: float | None
    said: list[str]


def largest(value_N: np.ndarray, of_N: np.ndarray, count: int) -> np.ndarray:
    """The largest value of each of `count` things; `of_N` says which thing a value is of."""
    most = np.zeros(count)
    np.maximum.at(most, of_N, value_N)
    return most


def without_gaps(made: Rounds) -> Rounds:
    """The rounds without the days in which nobody came at all; whole days, so that an hour stays an hour.

    Where a day is no whole number of rounds, or the log has no times, single rounds are left out.
    """
    day_T = np.arange(made.rounds)
    if made.start_T is not None and made.every is not None and 86400 % made.every == 0:
        day_T = (made.start_T // 86400).astype(np.int64)
        day_T -= day_T[0]
    rows_D = np.bincount(day_T[made.round_A], minlength=int(day_T[-1]) + 1)
    kept_T = rows_D[day_T] > 0
    gone = made.rounds - int(kept_T.sum())
    if not gone:
        return made
    place_T = kept_T.cumsum() - 1
    said = f"nobody came in {gone:,} of {made.rounds:,} rounds, which are left out (--gaps skip)"
    start_T = None if made.start_T is None else made.start_T[kept_T]
    return replace(
        made, round_A=place_T[made.round_A], rounds=made.rounds - gone, start_T=start_T, said=[*made.said, said]
    )
