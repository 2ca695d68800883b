"""The race: every candidate at several learning rates runs the same seeds, and what is shown to be behind stops.

What races is an arm: a candidate at one rate. Nothing is tuned beforehand, because a rate that is picked from a few
seeds makes identical candidates different, and a race among them then names one. Instead:

- All candidates have the same rates, at first 1/3, 1 and 3 times that of the experiment. While the best rate of any
  candidate is the lowest or the highest one, every candidate gets a further rate, before any arm is dropped.
- The race is evaluated after fixed numbers of seeds (LOOKS). At each look every two running arms are compared by a
  paired t-test, and the one behind is dropped. A candidate is out when its last arm is. The race is decided when all
  running arms are of one candidate.
- The same seed has the same data for all arms, and the same bootstrap log: stretches of the fleet's log, drawn with
  replacement. So the differences vary over seeds as they do over data and over stretches.

Why a wrong winner is rare. Take the truly best arm. A candidate other than its own wins only if this arm is dropped,
so if at some look one of the other arms seems better by chance. There are at most (candidates x MOST_RATES - 1) others
and len(LOOKS) looks, and the error is divided among all of these (Bonferroni), whether they are run or not, so adding
rates and stopping at any time are allowed. If two candidates are equally good, each has such an arm, and one of the
two must be dropped: that is why tests are two-sided. The race has ERROR = 2.5 % of the 5 % that are promised; the
other half is for collapses that are too rare to be seen in it (certainty.py, which also asks whether another log of
the same fleet would give the same answer). This holds for normal differences; benchmarks/advise_errors.py counts
errors for others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from turnout.errors import UserError
from turnout.fleet.advice.candidates import STEPS
from turnout.statistics import BEHIND, LEVEL, Standing, standing

LOOKS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
ERROR = (1 - LEVEL) / 2  # of the race; as much is for rare collapses
RATES = (0, 1, -1)  # steps from the learning rate of the experiment, in the order in which they are tried
MOST_RATES = 2 * STEPS + 1  # of a candidate
DIVERGED = "all that did not diverge"
BOUND = (
    f"paired t-tests at no more than {len(LOOKS)} looks (after {', '.join(map(str, LOOKS))} seeds), {ERROR:.1%} "
    f"divided among the looks and the arms that each one meets, {MOST_RATES} rates of every other candidate "
    "(Bonferroni): valid whenever it is stopped"
).replace("%", " %")


class Arm(NamedTuple):
    """A candidate with the settings it runs with.

    candidate  its name
    settings   its learning rate, in words
    """

    candidate: str
    settings: str


Scores = Mapping[Arm, Mapping[int, float]]  # arm -> seed -> score, higher is better


@dataclass(frozen=True)
class Dropped:
    """An arm that was dropped.

    arm             that was behind
    after           how many seeds
    by              the candidate it was behind
    gap, low, high  the difference to it, with its interval
    """

    arm: Arm
    after: int
    by: str
    gap: float
    low: float
    high: float


@dataclass(frozen=True)
class Race:
    """The state of a race.

    names    all candidates, the simplest first
    rates    how many rates each may have
    running  arms that are still in, by candidate
    dropped  arms that were behind
    same     arms with the same scores as one of a simpler candidate in every seed, and which one
    seeds    at the last look
    """

    names: tuple[str, ...]
    rates: int = MOST_RATES
    running: tuple[Arm, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    same: Mapping[Arm, Arm] = field(default_factory=dict)
    seeds: int = 0

    @property
    def candidates(self) -> list[str]:
        """The candidates that are still in, the simplest first."""
        return [name for name in self.names if any(arm.candidate == name for arm in self.running)]

    @property
    def decided(self) -> bool:
        return len(self.candidates) < 2

    @property
    def others(self) -> int:
        """How many arms the truly best one may meet."""
        return max(1, len(self.names) * self.rates - 1)

    @property
    def twins(self) -> dict[str, str]:
        """Candidates that do the very same as a simpler one here, and which one."""
        found = {arm.candidate: other.candidate for arm, other in self.same.items() if arm.candidate != other.candidate}
        return {name: other for name, other in found.items() if name not in self.candidates}

    def next_look(self) -> int | None:
        """The seeds after which the race is evaluated next; None past the last."""
        return next((look for look in LOOKS if look > self.seeds), None)

    def joined(self, settings: str, candidates: Sequence[str]) -> Race:
        """The race with these candidates at a further rate too."""
        arms = [*self.running, *(Arm(name, settings) for name in candidates)]
        return replace(self, running=tuple(sorted(arms, key=lambda arm: self.names.index(arm.candidate))))

    def without_twins(self, scores: Scores, seeds: int) -> Race:
        """The race without arms that have the very scores of one of a simpler candidate."""
        seen, same = {arm: _first(scores[arm], seeds) for arm in self.running}, {}
        for i, arm in enumerate(self.running):
            twin = next((other for other in self.running[:i] if seen[other] == seen[arm]), None)
            if twin is not None and all(map(math.isfinite, seen[arm].values())):
                same[arm] = twin
        running = tuple(arm for arm in self.running if arm not in same)
        return replace(self, running=running, same={**self.same, **same})

    def looked_at(self, scores: Scores, seeds: int) -> Race:
        """The race after a look at the first so many seeds, which all running arms have finished."""
        race = self.without_twins(scores, seeds)
        seen = {arm: _first(scores[arm], seeds) for arm in race.running}
        broken = [arm for arm in race.running if not all(map(math.isfinite, seen[arm].values()))]
        if len(broken) == len(race.running):
            raise UserError("every candidate diverges here: lower algorithm.local.optimizer.lr in the experiment")
        lost = [Dropped(arm, seeds, DIVERGED, math.nan, math.nan, math.nan) for arm in broken]
        running = [arm for arm in race.running if arm not in broken]
        behind = []
        for arm in running:
            standings = [(other, race.compared(arm, other, seen)) for other in running if other != arm]
            worse = [(s.gap or 0.0, other, s) for other, s in standings if s.verdict == BEHIND]
            if worse:
                gap, other, s = min(worse, key=lambda entry: entry[0])
                behind.append(Dropped(arm, seeds, other.candidate, gap, s.low or 0.0, s.high or 0.0))
        gone = {one.arm for one in behind}
        return replace(
            race,
            running=tuple(arm for arm in running if arm not in gone),
            dropped=(*race.dropped, *lost, *behind),
            seeds=seeds,
        )

    def compared(self, arm: Arm, other: Arm, scores: Scores) -> Standing:
        """One arm against another, with the interval by which the race decides.

        For any one arm, its comparisons with all others at every look must hold at once.
        """
        share = round((1 - LEVEL) / ERROR)
        return standing(arm.candidate, scores[arm], scores[other], share * self.others * len(LOOKS))

    def leader(self, scores: Scores) -> Arm:
        """The running arm with the best mean over the seeds looked at; the simpler of two with the same mean."""
        return max(self.running, key=lambda arm: mean(_first(scores[arm], self.seeds)))

    def best_arm(self, name: str, scores: Scores) -> Arm:
        """The arm of a candidate that stands for it: of those that lasted longest, the one with the best mean."""
        running = [arm for arm in self.running if arm.candidate == name]
        gone = [(one.after, one.arm) for one in self.dropped if one.arm.candidate == name]
        last = max((after for after, _ in gone), default=0)
        arms = running or [arm for after, arm in gone if after == last] or [a for a in self.same if a.candidate == name]
        return max(arms, key=lambda arm: mean(_first(scores[arm], self.seeds or LOOKS[-1])))

    def against(self, leader: Arm, scores: Scores) -> dict[str, Standing]:
        """The other running candidates, each by its best arm, against the leader, over the seeds looked at."""
        arms = [self.best_arm(name, scores) for name in self.candidates if name != leader.candidate]
        seen = {arm: _first(scores[arm], self.seeds) for arm in (leader, *arms)}
        return {arm.candidate: self.compared(arm, leader, seen) for arm in arms}

    def level(self, scores: Scores, margin: float) -> bool:
        """Whether all running candidates are shown to be less than a margin behind the leader: any of them will do."""
        lows = [s.low for s in self.against(self.leader(scores), scores).values()]
        return all(low is not None and low > -margin for low in lows)


def _first(score: Mapping[int, float], seeds: int) -> dict[int, float]:
    return {seed: value for seed, value in score.items() if seed < seeds}


def mean(score: Mapping[int, float]) -> float:
    return math.fsum(score.values()) / len(score) if score else math.nan
