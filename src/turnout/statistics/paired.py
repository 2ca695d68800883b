"""Numbers by seed: two methods that ran the same seeds had the same data and turnout, so their difference is taken
seed by seed, and its mean has an interval by Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.errors import UserError
from turnout.statistics.distributions import LEVEL, t_quantile

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds; `low` and `high` are its one-sided bounds at the level asked for (two of 95 % are a 90 %
    interval)."""

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]
    deviation: float

    def text(self, unit: str = "") -> str:
        seeds = f"{len(self.seeds)} seeds ({' '.join(map(str, self.seeds))})"
        ends = f"90 % interval {self.low:+.3g} to {self.high:+.3g}"
        return f"mean {self.mean:+.3g}{unit and ' ' + unit}, {ends}, {seeds}"


def interval(value: BySeed, level: float = LEVEL) -> Interval:
    """Mean ± t(level, n - 1) · s / √n over the seeds.

    >>> found = interval({0: 1.0, 1: 2.0, 2: 3.0})
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)  # 2 ± 2.920 · 1 / √3
    (2.0, 0.314, 3.686)
    """
    n = len(value)
    mean = math.fsum(value.values()) / n
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in value.values()) / (n - 1))
    reach = t_quantile(level, n - 1) * deviation / math.sqrt(n)
    return Interval(mean, mean - reach, mean + reach, tuple(sorted(value)), deviation)


def difference(ours: BySeed, theirs: BySeed) -> dict[int, float]:
    """Ours - theirs, for the seeds that both have: where a run failed, its seed is left out."""
    shared = sorted(ours.keys() & theirs.keys())
    if not shared and ours and theirs:
        raise UserError(f"compared runs must share their seeds, but these have {sorted(ours)} and {sorted(theirs)}")
    return {seed: ours[seed] - theirs[seed] for seed in shared}


def mean_over(values: Sequence[BySeed]) -> dict[int, float]:
    """Mean over several cases, seed by seed: runs of one seed share their data, so together they are one observation.

    >>> mean_over([{0: 1.0, 1: 2.0}, {0: 3.0, 1: 6.0}])
    {0: 2.0, 1: 4.0}
    """
    shared = [seed for seed in values[0] if all(seed in value for value in values)]
    return {seed: math.fsum(value[seed] for value in values) / len(values) for seed in shared}
