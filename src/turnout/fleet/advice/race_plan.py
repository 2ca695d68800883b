"""How much fits into the budget: decided once from the time of a few rounds, and kept in a file for resuming."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from turnout.fleet.advice.candidates import RATES
from turnout.fleet.advice.cases import RaceCase
from turnout.fleet.advice.race import LOOKS
from turnout.fleet.advice.trials import measure
from turnout.machine.files import write_whole

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
