"""The eight participation traces of paper 000 (Table 2), as distributions with their published moments.

The recorded traces are not public. If E units of work are asked for, a trace is the distribution on {1..E}/E with the
largest entropy among those with the published mean and deviation, p(x) ~ exp(a x + b x^2). In the last three, which
have inactive rounds, 0 has a probability of its own.

Shape letters: C clients of the cohort, G grid points, K traces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.rng import uniform

MOST_UNITS = 1_000_000  # of work: a trace is a probability for each of them
# name: (mean, standard deviation, whether it has inactive rounds); Table 2, as shares of the epochs asked for
TABLE_2 = {
    "T0": (1.000, 0.000, False),
    "T30": (0.753, 0.148, False),
    "T50": (0.672, 0.113, False),
    "T70": (0.572, 0.117, False),
    "T90": (0.563, 0.148, False),
    "Thi": (0.825, 0.233, True),
    "Tmi": (0.741, 0.223, True),
    "Tlo": (0.512, 0.183, True),
}


def probabilities(name: str, full_work: int, absence: float = 0.05) -> np.ndarray:
    """P(0), P(1/E), ..., P(1) of a trace when E = `full_work` units are asked for.

    The mean is always the published one. With few units the grid may not allow the published standard deviation; then
    the nearest possible one is taken (only for E = 2, 3, 4: at E = 2 every trace is a coin flip between half and all).

    >>> probabilities("T50", full_work=5).round(3)
    array([0.   , 0.   , 0.035, 0.58 , 0.376, 0.009])
    """
    if full_work > MOST_UNITS:
        raise UserError(f"traces are for at most {MOST_UNITS:,} units of work a round, not {full_work:,}: ask for less")
    mean, std, inactive = TABLE_2[name]
    zero = absence if inactive else 0.0
    mean_present = mean / (1 - zero)
    square_present = (std**2 + mean**2) / (1 - zero)
    grid_G = np.arange(1, full_work + 1) / full_work
    present_G = max_entropy(grid_G, mean_present, square_present - mean_present**2)
    return np.concatenate([[zero], (1 - zero) * present_G])


def max_entropy(grid_G: np.ndarray, mean: float, variance: float) -> np.ndarray:
    """The p(x) ~ exp(a x + b x^2) on an even grid with this mean and the nearest possible variance."""
    if len(grid_G) == 1 or mean >= grid_G[-1]:
        return (grid_G == grid_G[-1]).astype(float)
    below = int(np.searchsorted(grid_G, mean, side="right")) - 1
    smallest = (mean - grid_G[below]) * (grid_G[below + 1] - mean)
    largest = (mean - grid_G[0]) * (grid_G[-1] - mean)
    if variance <= smallest + 1e-12:
        return _two_points(grid_G, mean, below, below + 1)
    if variance >= largest - 1e-12:
        return _two_points(grid_G, mean, 0, len(grid_G) - 1)
    return _newton(grid_G, mean, variance)


def _two_points(grid_G: np.ndarray, mean: float, low: int, high: int) -> np.ndarray:
    p_G = np.zeros(len(grid_G))
    p_G[high] = (mean - grid_G[low]) / (grid_G[high] - grid_G[low])
    p_G[low] = 1 - p_G[high]
    return p_G


def _newton(grid_G: np.ndarray, mean: float, variance: float) -> np.ndarray:
    """Damped Newton on the convex dual log Z(a, b) - a E[y] - b E[y^2], with y = (x - mean) / std."""
    y_G = (grid_G - mean) / math.sqrt(variance)
    features_2G = np.stack([y_G, y_G**2])
    target_2 = np.array([0.0, 1.0])
    ab_2 = np.array([0.0, -0.5])  # the normal distribution: exact on an infinitely fine grid
    value, p_G = _dual(ab_2, features_2G, target_2)
    for _ in range(200):
        gradient_2 = features_2G @ p_G - target_2
        if np.abs(gradient_2).max() < 1e-13:
            break
        centred_2G = features_2G - (features_2G @ p_G)[:, None]
        direction_2 = -np.linalg.solve((centred_2G * p_G) @ centred_2G.T, gradient_2)
        slope, step = float(direction_2 @ gradient_2), 1.0
        while step > 1e-10:
            new_value, new_p_G = _dual(ab_2 + step * direction_2, features_2G, target_2)
            if new_value <= value + 1e-4 * step * slope + 1e-15:
                break
            step /= 2
        ab_2, value, p_G = ab_2 + step * direction_2, new_value, new_p_G
    return p_G


def _dual(ab_2: np.ndarray, features_2G: np.ndarray, target_2: np.ndarray) -> tuple[float, np.ndarray]:
    score_G = ab_2 @ features_2G
    top = score_G.max()
    weight_G = np.exp(score_G - top)
    total = weight_G.sum()
    return float(top + math.log(total) - ab_2 @ target_2), weight_G / total


@lru_cache(maxsize=64)
def _cumulative(names: tuple[str, ...], full_work: int, absence: float) -> Tensor:
    """All traces' cumulative probabilities in one sorted list: those of the k-th trace, plus k."""
    rows = []
    for k, name in enumerate(names):
        cumulative_G = np.cumsum(probabilities(name, full_work, absence))
        cumulative_G[-1] = 1.0
        rows.append(np.minimum(cumulative_G, 1.0) + k)
    return torch.from_numpy(np.concatenate(rows))


@dataclass(frozen=True)
class Traces:
    """Every client has one of the traces, drawn once, and draws its work from it each round.

    first    the first so many traces of Table 2; the default is the first five
    names    traces by name instead, such as ["T0", "Tlo"]
    absence  P(work = 0) in the traces with inactive rounds (Thi, Tmi, Tlo); the paper does not give it

    >>> work_C = Traces(names=["T50"]).fraction(torch.arange(10_000), t=0, full_work=5, seed=0)
    >>> round(float(work_C.mean()), 2), round(float(work_C.std()), 2)  # Table 2: 67.2 and 11.3 percent
    (0.67, 0.11)
    """

    first: int | None = None
    names: tuple[str, ...] = ()
    absence: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        if self.first is not None and self.names:
            raise UserError("participation Traces: give `first` or `names`, not both")
        if self.first is not None and not 1 <= self.first <= len(TABLE_2):
            raise UserError(f"participation Traces(first={self.first}): give 1 to {len(TABLE_2)}")
        for name in self.names:
            if name not in TABLE_2:
                raise UserError(f"participation Traces: no trace {name!r}; {nearest(name, TABLE_2)}")
        if not 0 <= self.absence <= 0.06:
            raise UserError(
                f"participation Traces(absence={self.absence}): give 0 to 0.06; with more, "
                "no distribution has the published mean and standard deviation"
            )

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.names or tuple(TABLE_2)[: self.first or 5]

    def trace(self, client_C: Tensor, seed: int) -> Tensor:
        """Which of the chosen traces each client has."""
        return (uniform(seed, "trace", ids=client_C) * len(self.chosen)).to(torch.int64)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        units = int(full_work)
        if units < 2 and self.chosen != ("T0",):
            raise UserError(
                f"participation Traces with {full_work} unit of local work: the traces say how much of it is "
                "finished, and one unit has no parts. Ask for at least 2 (the paper: 5), "
                "or use Dropout, where clients do all or nothing"
            )
        trace_C = self.trace(client_C, seed)
        u_C = uniform(seed, "work", t, ids=client_C)
        place_C = torch.searchsorted(_cumulative(self.chosen, units, self.absence), u_C + trace_C, right=True)
        work_C = (place_C - trace_C * (units + 1)).clamp(max=units)
        return work_C.to(torch.float64) / units


@dataclass(frozen=True)
class Homogeneous:
    """Every client has the same trace.

    trace    its name in Table 2
    absence  P(work = 0), if the trace has inactive rounds
    """

    trace: str = "T50"
    absence: float = 0.05

    def __post_init__(self) -> None:
        Traces(names=(self.trace,), absence=self.absence)  # checks the name and the absence

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return Traces(names=(self.trace,), absence=self.absence).fraction(client_C, t, full_work, seed)
