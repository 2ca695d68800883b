"""The race: candidates run the same seeds, and one that is shown to be behind another stops.

The race is evaluated after fixed numbers of seeds (LOOKS). At each look every two running candidates are compared by a
paired t-test, and the one behind is dropped. The error of 5 % is divided among the looks and, for each candidate, among
those it meets (Bonferroni), two-sided. So the truly best candidate is dropped at any look with probability at most
2.5 %, and the race may be stopped at any time: a winner that is no better than some other is named in at most 5 % of
the races, also if all are alike. That holds for normal differences; tests/fleet/test_advise.py and
benchmarks/advise_errors.py count errors for others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from turnout.errors import UserError
from turnout.running.charts.units import duration
from turnout.statistics import BEHIND, Standing, standing

LOOKS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
DIVERGED = "all that did not diverge"
BOUND = (
    f"paired t-tests at no more than {len(LOOKS)} looks (after {', '.join(map(str, LOOKS))} seeds), 5 % divided among "
    "the looks and the candidates that each one meets (Bonferroni): valid whenever it is stopped"
)

Scores = Mapping[str, Mapping[int, float]]  # candidate -> seed -> score, higher is better


@dataclass(frozen=True)
class Dropped:
    """A candidate that was dropped.

    name            of the candidate
    after           how many seeds
    by              the candidate it was behind
    gap, low, high  the difference to it, with its interval
    """

    name: str
    after: int
    by: str
    gap: float
    low: float
    high: float


@dataclass(frozen=True)
class Race:
    """The state of a race.

    names    all candidates, the simplest first
    running  candidates that are still in
    dropped  candidates that were behind
    same     candidates with the same scores as a simpler one in every seed, and which one
    seeds    at the last look
    """

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

    def next_look(self) -> int | None:
        """The seeds after which the race is evaluated next; None past the last."""
        return next((look for look in LOOKS if look > self.seeds), None)

    def looked_at(self, scores: Scores, seeds: int) -> Race:
        """The race after a look at the first so many seeds, which all running candidates have finished."""
        seen = {name: _first(scores[name], seeds) for name in self.running}
        broken = [name for name in self.running if not all(map(math.isfinite, seen[name].values()))]
        if len(broken) == len(self.running):
            raise UserError("every candidate diverges here: lower algorithm.local.optimizer.lr in the experiment")
        same = {}
        for i, name in enumerate(self.running):
            twin = next((other for other in self.running[:i] if seen[other] == seen[name]), None)
            if twin is not None and name not in broken:
                same[name] = twin
        running = [name for name in self.running if name not in same and name not in broken]
        lost = [Dropped(name, seeds, DIVERGED, math.nan, math.nan, math.nan) for name in broken]
        behind = []
        for name in running:
            standings = [(other, self.compared(name, other, seen)) for other in running if other != name]
            worse = [(s.gap or 0.0, other, s) for other, s in standings if s.verdict == BEHIND]
            if worse:
                gap, other, s = min(worse, key=lambda entry: entry[0])
                behind.append(Dropped(name, seeds, other, gap, s.low or 0.0, s.high or 0.0))
        names = {one.name for one in behind}
        return replace(
            self,
            running=tuple(name for name in running if name not in names),
            dropped=(*self.dropped, *lost, *behind),
            same={**self.same, **same},
            seeds=seeds,
        )

    def compared(self, name: str, other: str, scores: Scores) -> Standing:
        """One candidate against another, with the interval by which the race decides.

        For any one candidate, its comparisons with all others at every look must hold at once.
        """
        return standing(name, scores[name], scores[other], max(1, len(self.names) - 1) * len(LOOKS))

    def leader(self, scores: Scores) -> str:
        """The running candidate with the best mean over the seeds looked at; the simpler of two with the same mean."""
        return max(self.running, key=lambda name: mean(_first(scores[name], self.seeds)))

    def against(self, leader: str, scores: Scores) -> dict[str, Standing]:
        """The other running candidates against the leader, over the seeds looked at."""
        seen = {name: _first(scores[name], self.seeds) for name in self.running}
        return {name: self.compared(name, leader, seen) for name in self.running if name != leader}

    def level(self, scores: Scores, margin: float) -> bool:
        """Whether all running candidates are shown to be less than a margin behind the leader: any of them will do."""
        lows = [s.low for s in self.against(self.leader(scores), scores).values()]
        return all(low is not None and low > -margin for low in lows)


def _first(score: Mapping[int, float], seeds: int) -> dict[int, float]:
    return {seed: value for seed, value in score.items() if seed < seeds}


def mean(score: Mapping[int, float]) -> float:
    return math.fsum(score.values()) / len(score) if score else math.nan


class RaceBoard:
    """Steps of the advice, with a bar for the runs of the current one."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        columns = "{task.description}", "{task.completed}/{task.total}", "{task.fields[left]}"
        self.bar = Progress(*map(TextColumn, columns), BarColumn(), console=self.console, transient=True)
        self.task = self.bar.add_task("", total=None, left="")
        self.budget = 0.0

    def __enter__(self) -> RaceBoard:
        if self.console.is_terminal and not self.console.quiet:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def say(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.console.print(line, highlight=False, markup=False)

    def begin(self, step: str, runs: int, spent: float, budget: float) -> None:
        """Begin a step of so many runs."""
        self.budget = budget
        self.bar.reset(self.task, description=step, total=max(1, runs), completed=0, left=self._left(spent))
        if runs and not self.bar.live.is_started:
            self.say([f"{step}: {runs} runs, {self._left(spent)}"])

    def advance(self, spent: float) -> None:
        self.bar.update(self.task, advance=1, left=self._left(spent))

    def _left(self, spent: float) -> str:
        return f"{duration(max(0.0, self.budget - spent))} left"

    def show_race(self, race: Race) -> None:
        """A line about the last look."""
        gone, same = len(race.dropped), len(race.same)
        words = f"after {race.seeds} seeds: {len(race.running)} still in, {gone} dropped, {same} set aside"
        self.say([words] if race.seeds else [])
