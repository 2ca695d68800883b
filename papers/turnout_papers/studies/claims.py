"""How a study decides its claims: comparisons paired by seed, and nothing else.

A claim holds iff the one-sided 95 % bound of the mean difference is above 0 (above -margin for "no worse"), and is
refuted iff the bound of the other side is not. In between it is undecided, and the evidence says how many seeds would
decide it, and which way, if mean and spread stay as observed. A difference of exactly 0 in every seed is level, neither
held nor refuted. Rounds to a target are censored at the last round and compared by the sign test, either way. One seed
or a missing number leaves a claim undecided. Numbers without any seed are of runs that were not made: their differences
and means have no seed either, and a claim about them was not run.

A run that diverged has the worst number there is, ±∞. Where one is compared, the signed ranks of the differences
decide (Wilcoxon's test, exact): a difference to a run that diverged is the largest, two that diverged are equal.

Seeds that are added after a look at fewer have an error of their own. A study may fix its looks before the first run:
then the 5 % are spent over them in proportion to the seeds (`at_look`), and all looks together err in 5 % at most.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from turnout.errors import UserError
from turnout.statistics import LEVEL, BySeed, Interval, interval, sign_test, t_below
from turnout.statistics import difference as paired_difference

HOLDS, REFUTED, UNDECIDED, NOT_RUN = "holds", "refuted", "undecided", "not run"
EQUAL, UNTESTED = "level", "untested"
MOST_SEEDS = 10_000  # more seeds than these are reported as None
MOST_SIGNS = 1_000  # the same for the sign test, which takes longer to compute


def seeds_to_decide(gap: float, deviation: float) -> int | None:
    """The fewest seeds at which the one-sided bound of a mean excludes the margin, if the mean's distance from it
    (`gap`) and the standard deviation over seeds stay as they are: |gap| > t(95 %, n - 1) s / √n. None: too many.

    >>> seeds_to_decide(1.0, 2.0), seeds_to_decide(-1.0, 2.0), seeds_to_decide(0.0, 2.0)
    (13, 13, None)
    """

    def decides(n: int) -> bool:
        return deviation == 0 or t_below(abs(gap) * math.sqrt(n) / deviation, n - 1) > LEVEL

    found = bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=decides)
    return found if gap and found <= MOST_SEEDS else None


def seeds_to_sign(wins: int, losses: int, seeds: int) -> int | None:
    """The fewest seeds at which the sign test decides, if wins and losses keep their shares; None: too many.

    >>> seeds_to_sign(3, 0, 3), seeds_to_sign(1, 4, 5), seeds_to_sign(2, 2, 5)
    (5, 11, None)
    """
    more, fewer = max(wins, losses), min(wins, losses)
    if more == fewer:
        return None
    lead = (more - fewer) / (more + fewer)
    rough = 0.25 / lead**2 * seeds / (more + fewer)  # a tenth of what the normal distribution would need
    for n in range(max(seeds + 1, int(rough)), MOST_SIGNS + 1):
        if sign_test(round(n * more / seeds), round(n * fewer / seeds)) <= 1 - LEVEL:
            return n
    return None


def difference(ours: BySeed, theirs: BySeed) -> dict[int, float]:
    """Ours - theirs for the seeds that both have; two runs that diverged are equal.

    >>> difference({0: 3.0, 1: -math.inf, 2: -math.inf}, {0: 1.0, 1: 1.0, 2: -math.inf})
    {0: 2.0, 1: -inf, 2: 0.0}
    """
    gap = paired_difference(ours, theirs)
    return {seed: 0.0 if ours[seed] == theirs[seed] else value for seed, value in gap.items()}


def mean_over(values: Sequence[BySeed]) -> dict[int, float]:
    """Mean over several cases, seed by seed: runs of one seed share their data, so together they are one observation.

    With a case in which one side diverged it is ±∞; where each side did, in different cases, there is none (NaN).

    >>> mean_over([{0: 1.0, 1: 2.0, 2: math.inf}, {0: 3.0, 1: 6.0, 2: 0.0}])
    {0: 2.0, 1: 4.0, 2: inf}
    """
    shared = [seed for seed in values[0] if all(seed in value for value in values)]
    return {seed: sum(value[seed] for value in values) / len(values) for seed in shared}


def signed_ranks(value: BySeed) -> tuple[float, float]:
    """P(a sum of positive ranks as large as this one) and P(one as small), if signs were a coin's; zeros do not count.

    >>> signed_ranks({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: math.inf})
    (0.03125, 1.0)
    """
    ordered = sorted((v for v in value.values() if v), key=abs)
    size = [abs(v) for v in ordered]
    rank = [size.index(s) + 1 + len(size) - size[::-1].index(s) for s in size]  # twice the mean rank of equal ones
    ways = {0: 1}  # sum of positive ranks, doubled -> how many choices of signs give it
    for r in rank:
        ways = {total: ways.get(total, 0) + ways.get(total - r, 0) for total in ways.keys() | {t + r for t in ways}}
    found = sum(r for r, v in zip(rank, ordered, strict=True) if v > 0)
    more, less = (sum(n for t, n in ways.items() if s * t >= s * found) / 2 ** len(rank) for s in (1, -1))
    return more, less


@dataclass(frozen=True)
class Chance:
    """How likely chance alone gives numbers that speak as much for a claim, or for its opposite.

    p         for the claim
    opposite  for its opposite
    seeds     how many observations there are
    """

    p: float
    opposite: float
    seeds: int


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and whether our runs support it.

    claim         the sentence
    holds         whether they do
    evidence      the numbers
    refuted       whether they support the opposite
    seeds_needed  how many seeds would decide an undecided claim, if mean and spread stay as they are
    neither       what it is called where it neither holds nor is refuted: undecided, level or untested
    chance        what a test says of it; None where none was made, or where it was read from a file
    """

    claim: str
    holds: bool
    evidence: str
    refuted: bool = False
    seeds_needed: int | None = None
    neither: str = UNDECIDED
    chance: Chance | None = field(default=None, compare=False)

    @property
    def ran(self) -> bool:
        return not self.evidence.startswith(NOT_RUN)

    @property
    def outcome(self) -> str:
        """One of "holds", "refuted", "undecided", "level", "untested" and "not run"."""
        decided = HOLDS if self.holds else REFUTED if self.refuted else self.neither
        return decided if self.ran else NOT_RUN


def above(claim: str, value: BySeed, margin: float = 0.0, unit: str = "") -> Claim:
    """The mean is above -margin: its lower bound is. Refuted where its upper bound is not.

    >>> [above("up", {0: 1.0 + a, 1: 2.0 + a, 2: 3.0 + a}).outcome for a in (0, -2, -4)]
    ['holds', 'undecided', 'refuted']
    """
    if why := undecidable(value):
        return Claim(claim, False, why)
    if any(math.isinf(v) for v in value.values()):
        return by_ranks(claim, {seed: v + margin for seed, v in value.items()})
    found = interval(value)
    if margin == 0 and not any(value.values()):
        return Claim(claim, False, f"{found.text(unit)}: the same in every seed", neither=EQUAL)
    wanted = "" if margin == 0 else f"; the lower end must be above {-margin:g}"
    outcome, gap = (found.low > -margin, found.high <= -margin), found.mean + margin
    chance = Chance(_t_chance(gap, found), _t_chance(-gap, found), len(value))
    return _decided(claim, outcome, found.text(unit) + wanted, gap, seeds_to_decide(gap, found.deviation), chance)


def _t_chance(gap: float, found: Interval) -> float:
    """P(a mean as far above the margin, by Student's t), if it were at the margin."""
    if not found.deviation:
        return 0.0 if gap > 0 else 1.0
    n = len(found.seeds)
    return 1 - t_below(gap * math.sqrt(n) / found.deviation, n - 1)


def by_ranks(claim: str, value: BySeed) -> Claim:
    """The differences lie above 0, by their signed ranks: what is said where a run diverged.

    >>> by_ranks("up", {0: 1.0, 1: 2.0, 2: 0.5, 3: math.inf, 4: math.inf}).outcome
    'holds'
    """
    wins, losses = (sum(sign * v > 0 for v in value.values()) for sign in (1, -1))
    up, down = (sum(sign * v == math.inf for v in value.values()) for sign in (1, -1))
    p, opposite = signed_ranks(value)
    counts = f"above in {wins} of {len(value)} seeds ({up} for a run that diverged), below in {losses} ({down})"
    level = f"p = {p:.2g}" + (f", of the opposite {opposite:.2g}" if opposite <= 1 - LEVEL else "")
    finite = [v for v in value.values() if math.isfinite(v)]
    mean = f"; mean of the others {math.fsum(finite) / len(finite):+.3g}" if finite else ""
    evidence, chance = f"{counts}; signed ranks {level}{mean}", Chance(p, opposite, len(value))
    return Claim(claim, p <= 1 - LEVEL, evidence, opposite <= 1 - LEVEL, chance=chance)


def _decided(
    claim: str, outcome: tuple[bool, bool], evidence: str, gap: float, seeds: int | None, chance: Chance
) -> Claim:
    """A claim that is decided; an undecided one says how many seeds would decide it, and (by `gap`) which way."""
    if any(outcome):
        return Claim(claim, outcome[0], evidence, outcome[1], chance=chance)
    number = f"{seeds:,} seeds" if seeds else "more seeds than can be run"
    way = "for" if gap > 0 else "against"
    words = f"{UNDECIDED}: if it goes on like this, {number} would decide it, {way} the claim"
    evidence += f"; {words if gap else f'{UNDECIDED}: as many for as against'}"
    return Claim(claim, False, evidence, False, seeds, chance=chance)


def better(claim: str, ours: BySeed, theirs: BySeed, unit: str = "", margin: float = 0.0) -> Claim:
    """Ours is larger than theirs (with a margin: or smaller by less than that), paired by seed."""
    return above(claim, difference(ours, theirs), margin, unit)


def either(claim: str, options: Sequence[Claim]) -> Claim:
    """At least one of several holds (each was decided by itself, so this is easier to meet than any of them)."""
    if not any(option.ran for option in options):
        return Claim(claim, False, NOT_RUN)
    evidence = "; ".join(f"{option.claim}: {option.outcome} ({option.evidence})" for option in options)
    holds, refuted = any(option.holds for option in options), all(option.refuted for option in options)
    needed = [o.seeds_needed for o in options if o.outcome == UNDECIDED and not holds]  # what decides all of them
    known = [n for n in needed if n is not None]
    tests = [option.chance for option in options if option.chance is not None]
    chance = (
        Chance(min(t.p for t in tests), max(t.opposite for t in tests), min(t.seeds for t in tests)) if tests else None
    )
    most = max(known) if known and len(known) == len(needed) else None
    return Claim(claim, holds, evidence, refuted, most, chance=chance)


def within(claim: str, ours: BySeed, theirs: BySeed, margin: float, unit: str = "") -> Claim:
    """Ours and theirs differ by at most a margin: both one-sided bounds are inside it; refuted where both are out."""
    value = difference(ours, theirs)
    if why := undecidable(value):
        return Claim(claim, False, why)
    if apart := [v for v in value.values() if math.isinf(v)]:
        return Claim(claim, False, f"cannot decide: in {len(apart)} of {len(value)} seeds one of the two diverged")
    found = interval(value)
    evidence = f"{found.text(unit)}; both ends must be within ±{margin:g}"
    outcome = -margin <= found.low and found.high <= margin, found.low > margin or found.high < -margin
    gap = margin - abs(found.mean)
    inside = max(_t_chance(margin + found.mean, found), _t_chance(margin - found.mean, found))
    beyond = min(_t_chance(found.mean - margin, found), _t_chance(-found.mean - margin, found))
    chance = Chance(inside, beyond, len(value))
    return _decided(claim, outcome, evidence, gap, seeds_to_decide(gap, found.deviation), chance)


def same(claim: str, values: Mapping[str, BySeed], tolerance: float, unit: str = "") -> Claim:
    """Several cases agree to rounding, in every seed: the largest difference is within the tolerance."""
    names = list(values)
    gaps = {n: difference(values[n], values[names[0]]) for n in names[1:]}
    found = [abs(gap) for by_seed in gaps.values() for gap in by_seed.values()]
    if not found or any(math.isnan(gap) for gap in found):
        return Claim(claim, False, "cannot decide: numbers are missing" if found else NOT_RUN)
    holds, seeds = max(found) <= tolerance, len(values[names[0]])
    evidence = f"largest difference of {', '.join(names)}: {max(found):.2g}{unit and ' ' + unit}"
    return Claim(claim, holds, f"{evidence} in {seeds} seeds (allowed: {tolerance:g})", refuted=not holds)


def sooner(claim: str, ours: Mapping[int, float | None], theirs: Mapping[int, float | None], last: int) -> Claim:
    """Ours reaches the target in fewer rounds, by the sign test; None (never reached) counts as the last round.

    >>> five = {seed: 10 for seed in range(5)}
    >>> sooner("faster", five, {seed: None for seed in range(5)}, last=200).evidence.split(";")[0]
    'sooner in 5 of 5 seeds, later in 0, equal in 0 (sign test p = 0.031)'
    """
    gap = difference(censored(theirs, last), censored(ours, last))
    wins, losses = sum(v > 0 for v in gap.values()), sum(v < 0 for v in gap.values())
    never = [sum(r is None for r in rounds.values()) for rounds in (ours, theirs)]
    counts = f"sooner in {wins} of {len(gap)} seeds, later in {losses}, equal in {len(gap) - wins - losses}"
    more = f"never reached: ours {never[0]}, theirs {never[1]}, counted as round {last}"
    return by_signs(claim, wins, losses, len(gap), counts, more)


def censored(rounds: Mapping[int, float | None], last: int) -> dict[int, float]:
    """Rounds by seed, where None (never reached) counts as the last round."""
    return {seed: float(last if number is None else number) for seed, number in rounds.items()}


def by_signs(claim: str, wins: int, losses: int, seeds: int, counts: str, more: str) -> Claim:
    """More wins than losses over the seeds, by the sign test; `counts` says them in words, `more` what else matters."""
    if not seeds:
        return Claim(claim, False, NOT_RUN)
    if not wins and not losses:
        return Claim(claim, False, f"{counts}; {more}", neither=EQUAL)
    p, opposite = sign_test(wins, losses), sign_test(losses, wins)
    outcome = p <= 1 - LEVEL, opposite <= 1 - LEVEL
    level = f"p = {p:.2g}" + (f", of the opposite {opposite:.2g}" if outcome[1] else "")
    needed, chance = seeds_to_sign(wins, losses, seeds), Chance(p, opposite, seeds)
    return _decided(claim, outcome, f"{counts} (sign test {level}); {more}", wins - losses, needed, chance)


def level_at(looks: Sequence[int], seeds: int) -> float:
    """The error that a look at so many seeds may have: its part of 5 %, in proportion to the seeds it adds; 0: no look.

    >>> level_at((5,), 5), level_at((5, 10), 5), level_at((4, 5, 10), 10), level_at((5, 10), 7)
    (0.05, 0.025, 0.025, 0.0)
    """
    if seeds not in looks:
        return 0.0
    before = max((n for n in looks if n < seeds), default=0)
    return round((1 - LEVEL) * (seeds - before) / max(looks), 12)


def at_look(claim: Claim, looks: Sequence[int]) -> Claim:
    """A claim as it is decided by a study that looks at fixed numbers of seeds only.

    The levels of all looks add up to 5 %, and so do their errors at most, whatever the test (Bonferroni).

    >>> found = above("up", {0: 1.0, 1: 1.2, 2: 0.6, 3: 1.4, 4: -0.3})  # p = 0.033
    >>> [at_look(found, looks).outcome for looks in ((5,), (5, 10), (10,))]
    ['holds', 'undecided', 'undecided']
    """
    if claim.chance is None:
        return claim
    level = level_at(looks, claim.chance.seeds)
    planned = ", ".join(map(str, looks))
    words = f"this look may err in {100 * level:g} %" if level else f"no look: it is planned at {planned} seeds"
    evidence = claim.evidence if level == level_at((5,), 5) else f"{claim.evidence}; {words}"
    return replace(claim, holds=claim.chance.p <= level, refuted=claim.chance.opposite <= level, evidence=evidence)


def first_decided(looks: Sequence[Claim]) -> Claim:
    """Of one claim at several looks the first that decides it; without one, the last."""
    return next((claim for claim in looks if claim.holds or claim.refuted), looks[-1])


def undecidable(value: BySeed) -> str | None:
    """Why these seeds cannot decide a claim; None if they can."""
    missing = [seed for seed, v in value.items() if math.isnan(v)]
    if missing:
        return f"cannot decide: no number for seed {', '.join(map(str, missing))}"
    if len(value) < 2:
        found = [f"cannot decide with 1 seed (it gives {v:+.3g}): take --seeds 2 or more" for v in value.values()]
        return found[0] if found else NOT_RUN
    return None


def best_elsewhere(score: Mapping[str, BySeed], judged: Collection[int]) -> str:
    """The setting with the best mean score on seeds other than those it will be judged on.

    >>> best_elsewhere({"lr 1": {0: 0.9, 7: 0.5}, "lr 2": {0: 0.1, 7: 0.6}}, judged=[0])
    'lr 2'
    """
    means = {}
    for name, by_seed in score.items():
        other = [v for seed, v in by_seed.items() if seed not in judged]
        if not other:
            raise UserError(f"{name!r} has only run with the seeds it is judged on: choose settings on other seeds")
        known = all(math.isfinite(v) for v in other)
        means[name] = math.fsum(other) / len(other) if known else -math.inf
    return max(means, key=lambda name: means[name])
