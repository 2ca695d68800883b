"""Outages: rounds in which far fewer of a group come than it should be.

With n asked, e expected and x there, a round is surely an outage if x < e / 2 and chance would hardly do it: the chance
is at most exp(-n KL(x/n || e/n)), the Chernoff bound of a sum of independent clients, and must be below UNLIKELY. The
outage lasts as long as x < e / 2 before and after, also at hours at which few come anyway.

Shape letters: T rounds, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

UNLIKELY = 1e-3


@dataclass(frozen=True)
class Outages:
    """How often a group is out, and for how long: a chain with P(begins) = begin and P(ends) = end in a round; while it
    lasts, a client that would have come does so with probability `left`."""

    begin: float
    end: float
    left: float
    episodes: int
    rounds: int

    @property
    def share(self) -> float:
        """The share of the rounds that are out, in the long run."""
        return self.begin / (self.begin + self.end)


def out_rounds(came_T: np.ndarray, expected_T: np.ndarray, asked_T: np.ndarray) -> np.ndarray:
    """Which rounds are outages.

    >>> out_rounds(np.array([9, 0, 1, 3]), np.array([8.0, 8.0, 3.0, 3.0]), np.array([20, 20, 20, 20])).tolist()
    [False, True, True, False]
    """
    asked_T = np.maximum(asked_T, 1)
    p_T = np.clip(expected_T / asked_T, 1e-9, 1 - 1e-9)
    x_T = np.minimum(came_T / asked_T, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        some_T = np.where(x_T > 0, x_T * np.log(x_T / p_T), 0.0)
        rest_T = np.where(x_T < 1, (1 - x_T) * np.log((1 - x_T) / (1 - p_T)), 0.0)
    few_T = came_T < expected_T / 2
    sure_T = few_T & (asked_T * (some_T + rest_T) > -np.log(UNLIKELY))
    stretch_T = np.cumsum(np.concatenate([[True], np.diff(few_T.astype(np.int8)) != 0])) - 1  # of few, or of enough
    has_one = np.bincount(stretch_T, sure_T) > 0
    found: np.ndarray = few_T & has_one[stretch_T]
    return found


def chain_of(out_T: np.ndarray, came_T: np.ndarray, expected_T: np.ndarray) -> Outages | None:
    """The chain of the outages of a group; None where there are none."""
    if not out_T.any() or out_T.all():
        return None
    begins = int((np.diff(out_T.astype(np.int8)) == 1).sum()) + int(out_T[0])
    rounds = int(out_T.sum())
    left = float(came_T[out_T].sum() / max(expected_T[out_T].sum(), 1e-9))
    return Outages(begins / int((~out_T).sum()), begins / rounds, min(left, 1.0), begins, rounds)
