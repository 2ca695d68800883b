"""The race: candidates run the same seeds, and one that is shown to be behind another runs no more.

It is looked at after fixed numbers of seeds (LOOKS). At each look every two candidates still in are compared by a
paired t-test, and the one behind is dropped. The error of 5 % is divided among the looks and, for each candidate, among
those it meets (Bonferroni), two-sided. So whichever candidate is truly best, it is dropped at any look with probability
at most 2.5 %, and the race may be stopped at any moment: a winner that is no better than some other is named in at most
5 % of the races, also where all are alike. That holds for normal differences; tests/test_advise.py and
benchmarks/advise_errors.py count errors for others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from turnout.errors import UserError
from turnout.statistics import BEHIND, Standing, standing

LOOKS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
DIVERGED = "all that did not diverge"
BOUND = (
    f"paired t-tests at no more than {len(LOOKS)} looks (after {', '.join(map(str, LOOKS))} seeds), 5 % divided among "
    "the looks and the candidates one meets (Bonferroni): valid whenever it is stopped"
)

Scores = Mapping[str, Mapping[int, float]]  # candidate -> seed -> score, higher is better


@dataclass(frozen=True)
class Dropped:
    """A candidate that was behind `by` after so many seeds; the difference to it, with its interval."""

    name: str
    after: int
    by: str
    gap: float
    low: float
    high: float


@dataclass(frozen=True)
class Race:
    """How a race stands. `names` are all candidates, the simplest first; `same`: those whose scores are those of
    another in every seed, and which other; `seeds`: at the last look."""

    names: tuple[str, ...]
    running: tuple[str, ...]
    dropped: tuple[Dropped, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    seeds: int = 0

    @classmethod
    def of(cls, names: Sequence[str]) -> Race:
        return cls(tuple(names), tuple(names))

    @property
    def decided(self) -> bool:
        return len(self.running) < 2

    @property
    def statements(self) -> int:
        """What has to hold at once for any one candidate: the others it meets, at every look."""
        return max(1, len(self.names) - 1) * len(LOOKS)

    def next_look(self) -> int | None:
        """After how many seeds it is looked at next; None past the last."""
        return next((look for look in LOOKS if look > self.seeds), None)

    def looked_at(self, scores: Scores, seeds: int) -> Race:
        """The race after a look at the first so many seeds, which all that run have finished."""
        seen = {name: _first(scores[name], seeds) for name in self.running}
        broken = [name for name in self.running if not all(map(math.isfinite, seen[name].values()))]
        if len(broken) == len(self.running):
            raise UserError("every candidate diverges here: lower algorithm.local.optimizer.lr in the experiment")
        lost = [Dropped(name, seeds, DIVERGED, math.nan, math.nan, math.nan) for name in broken]
        same = {
            name: other for name in self.running if name not in broken and (other := self._twin(name, seen)) is not None
        }
        running = [name for name in self.running if name not in same and name not in broken]
        behind = {name: found for name in running if (found := self._beaten(name, running, seen, seeds)) is not None}
        kept = tuple(name for name in running if name not in behind)
        dropped = (*self.dropped, *lost, *behind.values())
        return replace(self, running=kept, dropped=dropped, same={**self.same, **same}, seeds=seeds)

    def _twin(self, name: str, seen: Scores) -> str | None:
        """A simpler candidate with the very same scores."""
        before = self.running[: self.running.index(name)]
        return next((other for other in before if seen[other] == seen[name]), None)

    def _beaten(self, name: str, running: Sequence[str], seen: Scores, seeds: int) -> Dropped | None:
        """By whom a candidate is shown to be beaten, by most."""
        found = [(other, self.compared(name, other, seen)) for other in running if other != name]
        worse = [(s.gap or 0.0, other, s) for other, s in found if s.verdict == BEHIND]
        if not worse:
            return None
        gap, other, s = min(worse, key=lambda entry: entry[0])
        return Dropped(name, seeds, other, gap, s.low or 0.0, s.high or 0.0)

    def compared(self, name: str, other: str, scores: Scores) -> Standing:
        """One candidate against another, with the interval by which the race decides."""
        return standing(name, scores[name], scores[other], self.statements)

    def leader(self, scores: Scores) -> str:
        """The best mean of those still in, over the seeds looked at; the simpler of two that are level."""
        means = {name: mean(_first(scores[name], self.seeds)) for name in self.running}
        return max(self.running, key=lambda name: means[name])

    def against(self, leader: str, scores: Scores) -> dict[str, Standing]:
        """Those still in against the leader, over the seeds looked at."""
        seen = {name: _first(scores[name], self.seeds) for name in self.running}
        return {name: self.compared(name, leader, seen) for name in self.running if name != leader}

    def level(self, scores: Scores, margin: float) -> bool:
        """Whether all that are still in are shown to be less than a margin behind the leader: any of them will do."""
        lows = [s.low for s in self.against(self.leader(scores), scores).values()]
        return all(low is not None and low > -margin for low in lows)


def _first(score: Mapping[int, float], seeds: int) -> dict[int, float]:
    return {seed: value for seed, value in score.items() if seed < seeds}


def mean(score: Mapping[int, float]) -> float:
    return math.fsum(score.values()) / len(score) if score else math.nan
