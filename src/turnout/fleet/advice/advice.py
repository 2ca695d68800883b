"""An advice: its answer in words, as a table and as data; advice_page.py has the page and the files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from turnout.experiment import Experiment
from turnout.fleet.advice.candidates import NEARLY, NOT_TRIED, PLAIN, Candidate, Judge, with_rate
from turnout.fleet.advice.cases import RaceCase
from turnout.fleet.advice.race import BOUND, Race, RacePlan, Scores, mean
from turnout.fleet.advice.trials import TrialOutcome
from turnout.fleet.diagnosis import Diagnosis
from turnout.running.charts.page import renderer
from turnout.running.charts.units import duration, show, size
from turnout.statistics import Ranking, compare, words_of

RunOutcomes = Mapping[tuple[str, int], TrialOutcome]  # by world and seed


render = renderer("turnout.fleet.advice")


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate in the ranking.

    name               of the candidate
    score              its mean score
    seeds              it ran
    gap                the difference to the leader (if it was dropped: to the candidate it was behind), in words
    state              its place in the race, in words
    number, low, high  the difference with its interval, if there is one
    """

    name: str
    score: float
    seeds: int
    gap: str
    state: str
    number: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of a method, as means over its runs.

    up, down     bytes of a run
    rounds       of a run
    near_rounds, near_bytes  until it is nearly as good as plain FedAvg gets; None if it did not get there
    seconds      of a simulated run on this machine
    """

    up: float
    down: float
    rounds: int
    near_rounds: float | None
    near_bytes: float | None
    seconds: float

    def sentences(self, every: float | None) -> list[str]:
        """In words; `every`: the seconds from one round of the log to the next, if known."""
        found = [f"{self.rounds} rounds send {size(self.up)} up and {size(self.down)} down, all clients together"]
        if self.near_rounds is not None and self.near_bytes is not None:
            took = f"{self.near_rounds:.0f} rounds and {size(self.near_bytes)}"
            when = f", {duration(self.near_rounds * every)} at the log's pace" if every else ""
            found.append(f"{NEARLY:.0%} of plain FedAvg's final value after {took}{when}")
        seconds = duration(self.seconds)
        return [*found, f"a simulated run takes {seconds} here; the time of devices is not known from a log"]


def cost_of(found: RunOutcomes, plain: RunOutcomes, judge: Judge, rounds: int) -> Cost | None:
    """The cost of a method's runs, beside those of plain FedAvg; None without any."""
    if not found:
        return None
    near: list[tuple[int, float]] = []  # rounds and bytes of runs that got nearly as good as plain FedAvg
    for (case, _), outcome in found.items():
        of_plain = [o for (c, _), o in plain.items() if c == case]
        points = zip(outcome.rounds, outcome.values.get(judge.metric, ()), outcome.sent, strict=False)
        target = judge.nearly(of_plain) if of_plain else math.nan
        near += [(t, sent) for t, value, sent in points if judge.reaches(value, target)][:1]
    all_near = len(near) == len(found)
    runs = list(found.values())
    return Cost(
        up=fmean(o.up for o in runs),
        down=fmean(o.down for o in runs),
        rounds=rounds,
        near_rounds=fmean(t for t, _ in near) if all_near else None,
        near_bytes=fmean(sent for _, sent in near) if all_near else None,
        seconds=fmean(o.seconds for o in runs),
    )


@dataclass(frozen=True)
class Advice:
    """Which method suits a fleet, and how certain that is.

    folder      of the advice
    facts       about the log
    judge       the aim, and how it is measured
    plan        what was run within the budget
    cases       the worlds of the race
    candidates  by name
    settings    the tuned settings of each candidate
    refused     candidates that cannot run here, and why
    race        the state of the race at its end
    scores      by candidate and seed
    by_case     the same in each world
    outcomes    by candidate, world and seed
    spent       seconds
    budget      seconds
    warnings    about the log and the data
    """

    folder: Path
    facts: Diagnosis
    judge: Judge
    plan: RacePlan
    cases: Sequence[RaceCase]
    candidates: Mapping[str, Candidate]
    settings: Mapping[str, str]
    refused: Mapping[str, str]
    race: Race
    scores: Scores
    by_case: Mapping[str, Scores]
    outcomes: Mapping[str, RunOutcomes]
    spent: float
    budget: float
    warnings: Sequence[str] = ()

    @property
    def best(self) -> str | None:
        """The candidate that all others are behind; None if that is undecided."""
        return self.race.running[0] if self.race.decided and self.race.seeds else None

    @property
    def undecided(self) -> list[str]:
        """The candidates between which it was not decided, the simplest first."""
        return [] if self.best else list(self.race.running)

    @property
    def recommended(self) -> str:
        """The best, or the simplest of the undecided."""
        return self.race.running[0]

    @property
    def leader(self) -> str:
        return self.race.leader(self.scores) if self.race.seeds else self.recommended

    def sentence(self) -> str:
        """The answer."""
        aim = f"for {self.judge.aim.name}"
        if not self.race.seeds:
            return f"undecided {aim}: the budget was spent before the first look at the race; give it more"
        if self.best:
            same = words_of([name for name, other in self.race.same.items() if other == self.best])
            others = f" ({same} would do the very same here)" if same else ""
            return f"{self.best} {aim}{others}: all other candidates are behind with 95 % confidence"
        words = f"undecided between {words_of(self.undecided)} {aim} after {self.race.seeds} seeds"
        if self.race.level(self.scores, self.judge.margin):
            apart = "a twentieth of the bytes" if self.judge.aim.name == "bytes" else "half a point"
            words = f"{words_of(self.undecided)} are as good as each other {aim} (less than {apart} apart)"
        return f"{words}; {self.recommended} is the simplest of them"

    def rows(self) -> list[RankedCandidate]:
        """The ranking: those still in by their mean, then those dropped, the last first, then those set aside."""
        leader, means = self.leader, {n: mean(s) for n, s in self.scores.items()}
        against = self.race.against(leader, self.scores) if self.race.seeds else {}
        found = []
        for name in sorted(self.race.running, key=lambda n: -means[n] if means[n] == means[n] else math.inf):
            s = against.get(name)
            gap = "–" if s is None or s.gap is None else self._gap(s.gap, s.low, s.high)
            state = "best" if name == self.best else "leads" if name == leader else "not distinguishable"
            state = state if self.race.seeds else "no look yet"
            ends = (None, None, None) if s is None else (s.gap, s.low, s.high)
            found.append(RankedCandidate(name, means[name], len(self.scores[name]), gap, state, *ends))
        for d in sorted(self.race.dropped, key=lambda d: (-d.after, -d.gap)):
            gap = "diverged" if math.isnan(d.gap) else self._gap(d.gap, d.low, d.high)
            ends = (None, None, None) if math.isnan(d.gap) else (d.gap, d.low, d.high)
            state = f"behind {d.by} after {d.after} seeds"
            found.append(RankedCandidate(d.name, means[d.name], d.after, gap, state, *ends))
        for name, other in self.race.same.items():
            state = f"the same as {other} here"
            found.append(RankedCandidate(name, means[name], len(self.scores[name]), "0", state))
        return found

    def _gap(self, gap: float, low: float | None, high: float | None) -> str:
        ends = sorted(((low or 0.0), (high or 0.0)), reverse=self.judge.aim.name == "bytes")
        return f"{self.judge.shown(gap)} ({self.judge.shown(ends[0])} to {self.judge.shown(ends[1])})"

    def score_text(self, score: float) -> str:
        """A score in its unit."""
        if math.isnan(score):
            return "–"
        if self.judge.aim.name == "bytes":
            return size(2**-score)
        return show(score if self.judge.higher else -score, self.judge.unit)

    def cells(self) -> list[list[str]]:
        """The ranking as shown: candidate, score, seeds, difference, state."""
        return [[r.name, self.score_text(r.score), str(r.seeds), r.gap, r.state] for r in self.rows()]

    def table(self) -> Table:
        """The ranking for a terminal."""
        score = "bytes to target" if self.judge.aim.name == "bytes" else self.judge.metric
        table = Table(title=Text(f"{self.judge.aim.name}: {self.judge.aim.about}"), title_justify="left")
        for name in ("candidate", score, "seeds", "difference", ""):
            table.add_column(name, justify="left" if name in ("candidate", "") else "right")
        for cells in self.cells():
            table.add_row(*cells, style="bold" if cells[0] == self.best else None)
        return table

    def worlds(self) -> dict[str, Ranking]:
        """By world: those still in and plain FedAvg, compared over the seeds that all of them ran."""
        found = {}
        for case, scores in self.by_case.items():
            names = [n for n in self.race.names if scores[n] and (n in self.race.running or n == PLAIN)]
            seeds = set.intersection(*(set(scores[n]) for n in names)) if names else set()
            found[case] = compare({n: {s: scores[n][s] for s in seeds} for n in names})
        return found

    def world_sentences(self) -> list[str]:
        """The answer in each world, after a first look at the race."""
        worlds = self.worlds() if len(self.cases) > 1 and self.race.seeds else {}
        return [f"in the {name} world: {words}" for name, ranking in worlds.items() if (words := ranking.sentence())]

    def cost(self) -> Cost | None:
        """The cost of the recommended method in the worlds of the race; None before any run."""
        plain = self.outcomes.get(PLAIN, {})
        return cost_of(self.outcomes.get(self.recommended, {}), plain, self.judge, self.plan.rounds)

    def cost_sentences(self) -> list[str]:
        cost = self.cost()
        return [] if cost is None else cost.sentences(self.facts.every)

    def not_tried(self) -> list[str]:
        """What the advice does not know."""
        found = [f"{name}: {why}" for name, why in self.refused.items()]
        if not self.judge.aim.own_models:
            found.append("personal layers: they are for clients' own models (--for personal, --for worst-tenth)")
        if len(self.cases) > 1:
            found.append("your data and model: digits stood in for them; give an experiment file to race on yours")
        found += self.plan.notes()
        tried = self.plan.settings()
        for edge, where in ((tried[-1], "above"), (tried[0], "below")) if len(tried) > 1 else ():
            names = [name for name, settings in self.settings.items() if settings == edge]
            who = f"all {len(names)} candidates" if len(names) == len(self.settings) else ", ".join(names)
            if names:
                found.append(f"learning rates {where} {edge}, the best of those tried for {who}")
        return [*found, *NOT_TRIED]

    def recommended_experiment(self) -> Experiment:
        """The recommended method with its tuned settings, ready to run."""
        case = self.cases[min(1, len(self.cases) - 1)]
        made = self.candidates[self.recommended].on(case.lasting(self.plan.asked).experiment)
        made = with_rate(made, self.plan.rate(self.settings[self.recommended])).but(title=self.recommended)
        return made.but(**{"evaluate.every": max(1, self.plan.asked // 20)})

    def data(self) -> dict[str, Any]:
        """Everything for programs, as JSON can write it."""

        def finite(value: float) -> float | None:
            return value if math.isfinite(value) else None

        cost = self.cost()
        return {
            "answer": self.sentence(),
            "best": self.best,
            "undecided": self.undecided,
            "recommended": self.recommended,
            "aim": self.judge.aim.name,
            "bound": BOUND,
            "ranking": [
                {
                    "candidate": row.name,
                    "score": finite(row.score),
                    "seeds": row.seeds,
                    "difference": row.gap,
                    "state": row.state,
                    "settings": self.settings[row.name],
                    "by_seed": {str(s): finite(v) for s, v in self.scores[row.name].items()},
                }
                for row in self.rows()
            ],
            "worlds": {name: ranking.sentence() for name, ranking in self.worlds().items()},
            "cost": None if cost is None else cost.__dict__,
            "warnings": list(self.warnings),
            "not_tried": self.not_tried(),
            "seconds": round(self.spent, 1),
            "budget": self.budget,
        }

    def _repr_html_(self) -> str:
        """The answer and the ranking, for a notebook."""
        header = ["candidate", "score", "seeds", "difference", ""]
        said = {"title": self.facts.path, "said": self.sentence(), "best": self.best}
        return render("comparison.html", header=header, rows=self.cells(), **said)
