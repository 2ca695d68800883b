"""The race: candidates run the same seeds, and one that is shown to be behind another stops.

The race is evaluated after fixed numbers of seeds (LOOKS). At each look every two running candidates are compared by a
paired t-test, and the one behind is dropped. The error of 5 % is divided among the looks and, for each candidate, among
those it meets (Bonferroni), two-sided. So the truly best candidate is dropped at any look with probability at most
2.5 %, and the race may be stopped at any time: a winner that is no better than some other is named in at most 5 % of
the races, also if all are alike. That holds for normal differences; tests/fleet/test_advise.py and
benchmarks/advise_errors.py count errors for others.

How much fits into the budget (`RacePlan`) is decided once, from the time of a few rounds, and kept in a file for
resuming.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from turnout.errors import UserError
from turnout.fleet.advice.candidates import RATES
from turnout.fleet.advice.cases import RaceCase
from turnout.fleet.advice.trials import measure
from turnout.machine.files import write_whole
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


FILE = "plan.json"
PILOT = 4  # rounds that are timed
DEARER = 1.6  # what a candidate's run costs on average, in runs of plain FedAvg
TUNING, RACING = 0.4, 0.85  # the part of the budget at which each should have ended
TUNING_ENDS = 0.5  # the part at which tuning is stopped, if it takes longer than it should
FIRST_TUNING_SEED = 10_000  # seeds of the race are counted from 0
LEAST_ROUNDS = 15


@dataclass(frozen=True)
class RacePlan:
    """What is run within the budget.

    rates         the learning rate is multiplied by each of them
    tuning_seeds  with how many seeds each is tried
    rounds        of a run
    asked         rounds of the experiment; a small budget allows fewer
    seconds       that one seed of all candidates should take
    """

    rates: tuple[float, ...]
    tuning_seeds: int
    rounds: int
    asked: int
    seconds: float

    def settings(self) -> list[str]:
        return [f"lr × {rate:.3g}" for rate in self.rates]

    def rate(self, settings: str) -> float:
        return self.rates[self.settings().index(settings)]

    def tuned_with(self, seeds: int) -> RacePlan:
        """The same if only so many tuning seeds were finished; with none there was no tuning."""
        return replace(self, tuning_seeds=seeds, rates=self.rates if seeds else (1.0,))

    @property
    def seeds(self) -> range:
        return range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.tuning_seeds)

    def notes(self) -> list[str]:
        """What the budget did not allow, in sentences."""
        found = []
        if len(self.rates) == 1:
            found.append(
                "learning rates were not tuned: all candidates have the experiment's own; a larger budget tunes"
            )
        if self.rounds < self.asked:
            found.append(f"runs had {self.rounds} rounds instead of {self.asked}: the budget was too small for more")
        return found


def planned(
    cases: Sequence[RaceCase], candidates: int, budget: float, jobs: int, folder: Path, tune: bool = True
) -> RacePlan:
    """The plan in a folder, or a new one; without tuning, runs are as long as asked for."""
    path = folder / FILE
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        return RacePlan(**{**kept, "rates": tuple(kept["rates"])})
    rounds = cases[0].experiment.rounds
    if not tune:
        return RacePlan((1.0,), 0, rounds, rounds, 0.0)
    each = [timed(case, PILOT) for case in cases]
    plan = fitting([e[0] for e in each], [e[1] for e in each], rounds, candidates, budget, jobs)
    write_whole(path, json.dumps(asdict(plan)) + "\n")
    return plan


def timed(case: RaceCase, rounds: int) -> tuple[float, float]:
    """Seconds to begin a run of plain FedAvg, and seconds a round."""
    short = case.experiment.but(rounds=1, **{"world.events": ()})
    measure(short)  # compiles and reads files, which happens once
    start = time.perf_counter()
    measure(short)
    middle = time.perf_counter()
    measure(short.but(rounds=1 + rounds))
    end = time.perf_counter()
    each = max(1e-4, (end - middle) - (middle - start)) / rounds
    return max(0.0, middle - start - each), each


def fitting(
    begin: Sequence[float], each: Sequence[float], rounds: int, candidates: int, budget: float, jobs: int
) -> RacePlan:
    """The largest plan that leaves time for the race's first looks: fewer rates first, then fewer rounds.

    >>> fitting([0.1], [0.01], 100, candidates=10, budget=600, jobs=2).tuning_seeds
    2
    >>> fitting([0.1], [1.0], 100, candidates=10, budget=600, jobs=2).rounds
    15
    """

    def seconds(n: int) -> float:
        return DEARER * candidates * sum(b + n * e for b, e in zip(begin, each, strict=True)) / jobs

    for seeds in (2, 1):
        if seconds(rounds) * len(RATES) * seeds < TUNING * budget:
            return RacePlan(RATES, seeds, rounds, rounds, seconds(rounds))
    room = RACING * budget / LOOKS[1]
    n = rounds
    while n > LEAST_ROUNDS and seconds(n) > room:
        n -= max(1, n // 20)
    n = max(n, min(rounds, LEAST_ROUNDS))
    return RacePlan((1.0,), 0, n, rounds, seconds(n))
