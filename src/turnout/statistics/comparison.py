"""Several methods against the best of them, paired by seed.

The best is picked by looking at the numbers, so an interval for its difference to another must hold for every pair at
once: two-sided Student intervals whose error of 5 % is divided by the number of pairs (Bonferroni). A method is behind
where its whole interval is; otherwise it is not distinguishable from the best. So among methods that are all alike, any
is called behind in at most 5 % of the cases, however many they are. Differences that do not vary at all over the seeds
are exact, or those of a coarse measure: the sign test decides.

What it takes to reach a target may be censored (never reached); it is compared by the sign test, corrected in the same
way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from turnout.statistics.distributions import LEVEL, sign_test
from turnout.statistics.paired import BySeed, interval

BEST, LEADS, ALIKE, BEHIND = "best", "leads", "not distinguishable", "behind"
ONE_SEED, NO_NUMBER = "one seed", "no number"
MOST_NAMED = 6  # in a sentence
OPEN = (LEADS, ALIKE)  # which of these is best was not decided


@dataclass(frozen=True)
class Standing:
    """How one method stands to the best: `gap` is its mean less that of the best over the seeds both ran, `low` and
    `high` the interval of it, simultaneous for all pairs; None where there is none (the best itself, one seed)."""

    name: str
    verdict: str
    value: Mapping[int, float]
    gap: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> float:
        known = [v for v in self.value.values() if math.isfinite(v)]
        return math.fsum(known) / len(known) if known else math.nan

    @property
    def seeds(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Ranking:
    """Methods in the order given, each with how it stands to the best; `pairs` is what was corrected for."""

    standings: Sequence[Standing]
    pairs: int

    @cached_property
    def by_name(self) -> dict[str, Standing]:
        return {standing.name: standing for standing in self.standings}

    def named(self, *verdicts: str) -> list[str]:
        return [s.name for s in self.standings if s.verdict in verdicts]

    @property
    def best(self) -> str | None:
        """The method that all others are behind; None where that is not shown."""
        return next(iter(self.named(BEST)), None)

    def sentence(self) -> str:
        """What can be said at 95 %, in words.

        >>> compare({"A": {0: 1.0, 1: 1.1, 2: 1.2}, "B": {0: 1.1, 1: 1.05, 2: 1.2}}).sentence()
        'A and B are not distinguishable with 3 seeds'
        """
        if len(self.standings) < 2:
            return ""
        if self.named(ONE_SEED):
            return "one seed: a difference may be chance; take --seeds 3 or more"
        level = f"{LEVEL:.0%}".replace("%", " %") + (f", corrected for {self.pairs} comparisons" * (self.pairs > 1))
        behind = self.named(BEHIND)
        missing = f"; no number: {words_of(self.named(NO_NUMBER))}" if self.named(NO_NUMBER) else ""
        if self.best is not None:
            return f"{self.best} is best ({level}){missing}"
        if not self.named(*OPEN):
            return missing.removeprefix("; ")
        seeds = min(s.seeds for s in self.standings if s.verdict in OPEN)
        words = f"{words_of(self.named(*OPEN))} are not distinguishable with {seeds} seeds"
        return (
            words
            + (f"; {words_of(behind)} {'is' if len(behind) == 1 else 'are'} behind ({level})" * bool(behind))
            + missing
        )


def words_of(names: Sequence[str]) -> str:
    """A list as one says it.

    >>> words_of(["a", "b", "c"]), words_of(list("abcdefgh"))
    ('a, b and c', 'a, b, c, d and 4 others')
    """
    if len(names) > MOST_NAMED:
        names = [*names[: MOST_NAMED - 2], f"{len(names) - MOST_NAMED + 2} others"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def compare(values: Mapping[str, BySeed], higher_is_better: bool = True) -> Ranking:
    """Each method against the one with the best mean.

    >>> found = compare({"A": {0: 1.0, 1: 1.1, 2: 1.2}, "B": {0: 2.0, 1: 2.1, 2: 2.21}})
    >>> found.best, found.by_name["A"].verdict, round(found.by_name["A"].gap, 3)
    ('B', 'behind', -1.003)
    """
    known = {name: v for name, v in values.items() if v and all(map(math.isfinite, v.values()))}
    pairs = len(known) * (len(known) - 1) // 2
    sign = 1 if higher_is_better else -1
    means = {name: sign * math.fsum(v.values()) / len(v) for name, v in known.items()}
    top = max(means, key=lambda name: means[name], default="")
    others = {n: standing(n, known[n], known[top], pairs, sign) for n in known if n != top}
    others |= {n: Standing(n, NO_NUMBER, v) for n, v in values.items() if n not in known}
    if top:
        others[top] = Standing(top, _of_top([s.verdict for s in others.values()]), known[top])
    return Ranking([others[name] for name in values], pairs)


def _of_top(others: Sequence[str]) -> str:
    """What the best mean may be called, given what the others are."""
    judged = [verdict for verdict in others if verdict != NO_NUMBER]
    if ONE_SEED in judged:
        return ONE_SEED
    return LEADS if ALIKE in judged or not judged else BEST


def standing(name: str, value: BySeed, best: BySeed, pairs: int, sign: int = 1) -> Standing:
    """How one method stands to the best, by the seeds that both ran."""
    gaps = {seed: value[seed] - best[seed] for seed in value if seed in best}
    if len(gaps) < 2:
        return Standing(name, ONE_SEED, value, next(iter(gaps.values()), None))
    found = interval(gaps, 1 - (1 - LEVEL) / (2 * pairs))
    low, high = found.low, found.high
    exact = found.deviation <= 1e-12 * abs(found.mean)
    if exact and 2 * sign_test(len(gaps), 0) > (1 - LEVEL) / pairs:
        low, high = min(low, 0.0), max(high, 0.0)
    verdict = BEHIND if (high < 0 if sign > 0 else low > 0) else ALIKE
    return Standing(name, verdict, value, found.mean, low, high)


@dataclass(frozen=True)
class Reached:
    """What one method took to reach a target, by seed (None: it did not), and how it stands to the quickest."""

    name: str
    verdict: str
    value: Mapping[int, float | None]

    @property
    def reached(self) -> list[float]:
        return [v for v in self.value.values() if v is not None]


def compare_reached(values: Mapping[str, Mapping[int, float | None]]) -> list[Reached]:
    """Each method against the one with the lowest median cost of reaching a target, by the sign test.

    >>> quick, slow = {s: 5.0 for s in range(7)}, dict.fromkeys(range(7))
    >>> [(found.name, found.verdict) for found in compare_reached({"quick": quick, "slow": slow})]
    [('quick', 'best'), ('slow', 'behind')]
    """
    pairs = len(values) * (len(values) - 1) // 2
    costs = {n: {s: math.inf if c is None else c for s, c in value.items()} for n, value in values.items()}
    medians = {n: sorted(cost.values())[(len(cost) - 1) // 2] for n, cost in costs.items()}
    top = min(medians, key=lambda n: (medians[n], math.fsum(map(math.atan, costs[n].values()))))
    verdicts = {n: _slower(costs[n], costs[top], pairs) for n in values if n != top}
    if math.isinf(medians[top]):
        verdicts, verdicts[top] = dict.fromkeys(values, NO_NUMBER), NO_NUMBER
    else:
        verdicts[top] = _of_top(list(verdicts.values()))
    return [Reached(name, verdicts[name], value) for name, value in values.items()]


def _slower(cost: BySeed, best: BySeed, pairs: int) -> str:
    both = [seed for seed in cost if seed in best]
    if len(both) < 2:
        return ONE_SEED
    wins, losses = sum(best[s] < cost[s] for s in both), sum(best[s] > cost[s] for s in both)
    return BEHIND if 2 * sign_test(wins, losses) <= (1 - LEVEL) / pairs else ALIKE
