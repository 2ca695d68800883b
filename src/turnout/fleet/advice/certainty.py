"""Before a candidate is called best: would another log of the fleet agree, and may it collapse too rarely to see?

**One log is one sample.** The race shows which candidate is ahead on this log. Another log of the same fleet would
give another mean difference. How far they are apart is found by running seeds a second time: run s and its second have
the same bootstrap log and nothing else in common, so the covariance of their differences is the variance from log to
log. Its upper bound (95 %, because a covariance of few runs is often too small, or below 0) is added to the interval of
the race. The variance does not shrink with more seeds, only with a longer log, in proportion to its rounds, which gives
the number of rounds that would decide. Where all of the variance over seeds, taken as that
of logs, leaves a candidate behind, no second runs are needed; the others get more seeds, and second runs, until they
are behind for the fleet too.

**Rare collapses.** Twelve seeds do not show what happens in 3 % of them. A run collapses if it diverges or ends less
than half as good as the median run of its arm. The winner alone runs on, until the upper bound of Clopper and Pearson
for its share of collapses (97.5 %) is below TOLERATED, which takes SEEDS_NEEDED seeds. One collapse among them ends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from turnout.fleet.advice.race import ERROR, LOOKS, Arm, Race, Scores, mean
from turnout.statistics import LEVEL, difference, share_at_most, t_quantile

TOLERATED = 0.03  # of seeds that collapse: a candidate that may collapse more often is not called best
LOOKS_AGAIN = tuple(look for look in LOOKS if 12 <= look <= 128)  # seeds that are run a second time
SURELY = NormalDist().inv_cdf(LEVEL)  # of the upper bound of a variance that is estimated


def upper_bound(collapses: int, seeds: int) -> float:
    """The largest share of seeds that may collapse where so many did.

    >>> round(upper_bound(0, 24), 3), round(upper_bound(0, 122), 4)
    (0.142, 0.0298)
    """
    return share_at_most(collapses, seeds, 1 - ERROR)


SEEDS_NEEDED = next(n for n in range(1, LOOKS[-1]) if upper_bound(0, n) <= TOLERATED)  # without a collapse: 122


@dataclass(frozen=True)
class RivalGap:
    """The candidate ahead compared with another one, for the fleet and not only for this log.

    name       the other candidate, at its best rate
    gap        its difference to the one ahead
    low, high  the interval, with the variance from log to log
    spread     the deviation of the difference from log to log, as estimated; the interval has its upper bound
    measured   whether runs were repeated to find it; else it is an upper bound
    rounds     of a longer log that would decide; 0: this one does, or may with more seeds
    """

    name: str
    gap: float
    low: float
    high: float
    spread: float
    measured: bool
    rounds: int

    @property
    def decides(self) -> bool:
        return self.high < 0


def compared_over_logs(
    race: Race, ahead: Arm, rival: Arm, scores: Scores, again: Scores, rounds: int
) -> RivalGap:  # fmt: skip
    """The interval of the race, widened by the variance from log to log; `again` has the second runs, if any."""
    s = race.compared(rival, ahead, scores)
    assert s.gap is not None
    assert s.low is not None
    assert s.high is not None
    gaps = difference(scores[rival], scores[ahead])
    second = difference(again[rival], again[ahead]) if again.get(rival) and again.get(ahead) else {}
    one_sided = 1 - ERROR / 2 / race.others
    if measured := len(second) >= LOOKS_AGAIN[0]:
        first = {seed: gaps[seed] for seed in second}
        between = covariance(first, second)
        product = covariance(first, first) * covariance(second, second)
        most = between + SURELY * math.sqrt((product + between**2) / (len(second) - 1))
        quantile = NormalDist().inv_cdf(one_sided)
    else:  # all of the variance over seeds, as if it were that of logs
        between = most = covariance(gaps, gaps)
        quantile = t_quantile(one_sided, len(gaps) - 1)
    reach = quantile * math.sqrt(max(0.0, most))
    low, high = s.gap - math.hypot(s.gap - s.low, reach), s.gap + math.hypot(s.high - s.gap, reach)
    within, spread = s.gap**2 - (s.high - s.gap) ** 2, math.sqrt(max(0.0, between))
    needed = math.ceil(rounds * (quantile * spread) ** 2 / within) if high >= 0 and within > 0 and measured else 0
    return RivalGap(rival.candidate, s.gap, low, high, spread, measured, needed if needed > rounds else 0)


def covariance(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """Of values with the same seeds.

    >>> covariance({0: 1.0, 1: 3.0}, {0: 2.0, 1: 6.0})
    4.0
    """
    one, other = mean(first), mean(second)
    return math.fsum((first[s] - one) * (second[s] - other) for s in first) / (len(first) - 1)


@dataclass(frozen=True)
class Certainty:
    """What holds of the candidate that is ahead.

    arm        the candidate that is ahead, at its best rate
    rivals     how it compares with each other candidate over logs of the fleet
    collapses  seeds in which it collapsed
    seeds      that it ran
    """

    arm: Arm
    rivals: Sequence[RivalGap] = ()
    collapses: int = 0
    seeds: int = 0

    @property
    def at_most(self) -> float:
        """The largest share of seeds that may collapse."""
        return upper_bound(self.collapses, self.seeds)

    @property
    def holds_for_fleet(self) -> bool:
        """Whether another log of this fleet would put every other candidate behind too."""
        return all(rival.decides for rival in self.rivals)

    @property
    def collapses_rarely(self) -> bool:
        """Whether it is shown: by seeds without any collapse, looked at once, so that the bound is exact."""
        return not self.collapses and self.seeds >= SEEDS_NEEDED

    @property
    def rounds_needed(self) -> int:
        """The rounds of a log that would decide; 0 if this one does."""
        return max((rival.rounds for rival in self.rivals), default=0)
