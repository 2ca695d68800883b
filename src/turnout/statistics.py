"""Statistics of runs that are paired by seed, from closed forms; no other library is needed.

Methods that ran the same seeds had the same data and turnout, so differences are taken seed by seed, with an interval
by Student's t. `compare` compares several methods with the best of them, by intervals whose error of 5 % is divided by
the number of pairs (Bonferroni), because the best was picked by looking at the numbers. Where differences do not vary
over the seeds, and for the cost of reaching a target (`compare_reached`), the sign test decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from turnout.errors import UserError

LEVEL = 0.95  # of the one-sided bounds by which a study decides


def t_below(t: float, df: int) -> float:
    """P(T <= t) for Student's t with a whole number of degrees of freedom, by its finite series.

    With θ = atan(t / √ν), P(|T| <= t) is 2/π (θ + sin θ (cos θ + 2/3 cos³ θ + ...)) for odd ν, the sum ending at
    cos^(ν-2), and sin θ (1 + 1/2 cos² θ + 3/8 cos⁴ θ + ...) for even ν.

    >>> t_below(1.0, 1), round(t_below(2.0, 2), 6)
    (0.75, 0.908248)
    """
    theta = math.atan(t / math.sqrt(df))
    cosine, odd = math.cos(theta), df % 2
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, df - 1, 2):  # `term` is the one with cos^power
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    within = math.sin(theta) * total
    if odd:
        within = 2 / math.pi * (theta + within)
    return 0.5 + within / 2


@cache
def t_quantile(probability: float, df: int) -> float:
    """The t with P(T <= t) = probability, by halving an interval.

    >>> [round(t_quantile(0.95, df), 3) for df in (1, 2, 4, 30)]
    [6.314, 2.92, 2.132, 1.697]
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"the quantile is for probabilities in [0.5, 1), not {probability}")
    low, high = 0.0, 1.0
    while t_below(high, df) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, df) < probability else (low, middle)
    return (low + high) / 2


def sign_test(wins: int, losses: int) -> float:
    """P(at least this many wins) if wins and losses were equally likely; ties do not count.

    >>> sign_test(5, 0), sign_test(3, 1)
    (0.03125, 0.3125)
    """
    n = wins + losses
    total, ways = 0, math.comb(n, wins)
    for k in range(wins, n + 1):
        total += ways
        ways = ways * (n - k) // (k + 1)
    return total / 2**n


def share_at_most(found: int, n: int, level: float = LEVEL) -> float:
    """Clopper and Pearson's upper bound of a share: the one under which so few of n have probability 1 - level.

    >>> round(share_at_most(0, 59), 3), round(share_at_most(1, 10), 3), share_at_most(3, 3)  # 0 of n: nearly 3 / n
    (0.05, 0.394, 1.0)
    """
    if found >= n:
        return 1.0
    low, high = found / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        few = math.fsum(math.comb(n, k) * middle**k * (1 - middle) ** (n - k) for k in range(found + 1))
        low, high = (middle, high) if few > 1 - level else (low, middle)
    return high


BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its bounds.

    mean        over the seeds
    low, high   its one-sided bounds at the level of `interval` (two bounds of 95 % are a 90 % interval)
    seeds       the seeds, sorted
    deviation   the standard deviation over the seeds
    """

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
    """Ours - theirs for the seeds that both have: the seed of a failed run is left out."""
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


BEST, LEADS, ALIKE, BEHIND = "best", "leads", "not distinguishable", "behind"
ONE_SEED, NO_NUMBER = "one seed", "no number"
MOST_NAMED = 6  # in a sentence
OPEN = (LEADS, ALIKE)  # verdicts on methods any of which may be best


@dataclass(frozen=True)
class Standing:
    """How one method compares with the best.

    name        the method
    verdict     one of the constants above: BEST, LEADS, ALIKE, BEHIND, ONE_SEED, NO_NUMBER
    value       its numbers by seed
    gap         its mean minus that of the best over the seeds that both ran; None for the best itself
    low, high   the interval of the gap, simultaneous for all pairs; None for the best itself and for one seed
    """

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
    """Methods compared with the best of them.

    standings   of each method, in the order given
    pairs       the number of pairs that intervals are corrected for
    """

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
        """The result at 95 % in words.

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
    """A list in words.

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
        others[top] = Standing(top, _top_verdict([s.verdict for s in others.values()]), known[top])
    return Ranking([others[name] for name in values], pairs)


def _top_verdict(others: Sequence[str]) -> str:
    """The verdict on the method with the best mean, given the verdicts on the others."""
    judged = [verdict for verdict in others if verdict != NO_NUMBER]
    if ONE_SEED in judged:
        return ONE_SEED
    return LEADS if ALIKE in judged or not judged else BEST


def standing(name: str, value: BySeed, best: BySeed, pairs: int, sign: int = 1) -> Standing:
    """One method compared with the best over the seeds that both ran."""
    gaps = {seed: value[seed] - best[seed] for seed in value if seed in best}
    if len(gaps) < 2:
        return Standing(name, ONE_SEED, value, next(iter(gaps.values()), None))
    bounds = interval(gaps, 1 - (1 - LEVEL) / (2 * pairs))
    low, high = bounds.low, bounds.high
    exact = bounds.deviation <= 1e-12 * abs(bounds.mean)
    if exact and 2 * sign_test(len(gaps), 0) > (1 - LEVEL) / pairs:
        low, high = min(low, 0.0), max(high, 0.0)
    verdict = BEHIND if (high < 0 if sign > 0 else low > 0) else ALIKE
    return Standing(name, verdict, value, bounds.mean, low, high)


@dataclass(frozen=True)
class Reached:
    """The cost of one method to reach a target.

    name      the method
    verdict   how it compares with the quickest: one of the constants above
    value     the cost by seed; None where the target was not reached
    """

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
    verdicts = {}
    for name in (name for name in values if name != top):
        both = [seed for seed in costs[name] if seed in costs[top]]
        wins = sum(costs[top][seed] < costs[name][seed] for seed in both)
        losses = sum(costs[top][seed] > costs[name][seed] for seed in both)
        behind = 2 * sign_test(wins, losses) <= (1 - LEVEL) / pairs
        verdicts[name] = ONE_SEED if len(both) < 2 else BEHIND if behind else ALIKE
    if math.isinf(medians[top]):
        verdicts, verdicts[top] = dict.fromkeys(values, NO_NUMBER), NO_NUMBER
    else:
        verdicts[top] = _top_verdict(list(verdicts.values()))
    return [Reached(name, verdicts[name], value) for name, value in values.items()]
