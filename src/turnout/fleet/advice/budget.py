"""What fits into the budget, and the display of what the time is spent on.

A comparison comes first: one look at all candidates at one learning rate. Then further rates, the race, whether its
winner holds for the fleet and does not collapse, and levers, each until a part of the budget is spent (`UNTIL`). How
long runs may be is decided once, from the time of a few rounds, and kept in a file for resuming.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from turnout.fleet.advice.cases import RaceCase
from turnout.fleet.advice.race import LOOKS, RATES, Race
from turnout.fleet.advice.trials import measure
from turnout.machine.files import write_whole
from turnout.running.charts.units import duration

FILE = "plan.json"
PILOT = 4  # rounds that are timed
DEARER = 1.6  # what a candidate's run costs on average, in runs of plain FedAvg
LEAST_ROUNDS = 15
COMPARISON, FURTHER_RATES, RACING, SURE, LEVERS = (
    "the comparison", "learning rates", "the race", "other logs and collapses", "levers",
)  # fmt: skip
UNTIL: Mapping[str, float] = {COMPARISON: 0.95, FURTHER_RATES: 0.4, RACING: 0.6, SURE: 0.8, LEVERS: 0.97}


@dataclass(frozen=True)
class RacePlan:
    """What is run within the budget.

    tuned    whether every candidate has several learning rates
    rounds   of a run
    asked    rounds of the experiment; a small budget allows fewer
    seconds  that one seed of all candidates at one rate should take
    """

    tuned: bool
    rounds: int
    asked: int
    seconds: float

    def notes(self) -> list[str]:
        """What the budget did not allow, in sentences."""
        found = []
        if not self.tuned:
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
        return RacePlan(**json.loads(path.read_text(encoding="utf-8")))
    rounds = cases[0].experiment.rounds
    if not tune:
        return RacePlan(False, rounds, rounds, 0.0)
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
    """The largest plan whose first look fits: fewer rates first, then fewer rounds.

    >>> fitting([0.1], [0.01], 100, candidates=10, budget=600, jobs=2).tuned
    True
    >>> fitting([0.1], [1.0], 100, candidates=10, budget=600, jobs=2).rounds
    15
    """

    def seconds(n: int) -> float:
        return DEARER * candidates * sum(b + n * e for b, e in zip(begin, each, strict=True)) / jobs

    first = LOOKS[0] * (len(RATES) + 1)  # runs of a candidate to its first look, with one more rate
    if seconds(rounds) * first < UNTIL[FURTHER_RATES] * budget:
        return RacePlan(True, rounds, rounds, seconds(rounds))
    n, room = rounds, UNTIL[RACING] * budget / LOOKS[1]
    while n > LEAST_ROUNDS and seconds(n) > room:
        n -= max(1, n // 20)
    n = max(n, min(rounds, LEAST_ROUNDS))
    return RacePlan(False, n, rounds, seconds(n))


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
        arms, gone, same = len(race.running), len(race.names) - len(race.candidates) - len(race.twins), len(race.twins)
        words = f"{len(race.candidates)} candidates still in ({arms} with their rates), {gone} out, {same} set aside"
        self.say([f"after {race.seeds} seeds: {words}"] if race.seeds else [])
