"""An advice: what was found, in words, as a table, as data, and as files; page.py has the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from turnout.experiment import Experiment
from turnout.fleet.advice.aims import Judge
from turnout.fleet.advice.candidates import NOT_TRIED, PLAIN, Candidate, with_rate
from turnout.fleet.advice.cases import Case
from turnout.fleet.advice.cost import Cost, cost_of
from turnout.fleet.advice.fleet import FleetFacts
from turnout.fleet.advice.plan import Plan
from turnout.fleet.advice.race import BOUND, Race, Scores, mean
from turnout.fleet.advice.trial import Outcome
from turnout.machine.files import write_whole
from turnout.running.charts.units import show, size
from turnout.running.config.read import to_toml
from turnout.statistics import Ranking, compare, words_of

PAGE, RECOMMENDED, DATA = "advice.html", "recommended.toml", "advice.json"


@dataclass(frozen=True)
class Hinge:
    """The contenders in a world that differs in one thing, compared over some seeds."""

    what: str
    ranking: Ranking
    seeds: int


@dataclass(frozen=True)
class Row:
    """A candidate in the ranking: its score, the difference to the leader (or to whom it was behind) in words and as a
    number with its interval, what became of it."""

    name: str
    score: float
    seeds: int
    gap: str
    state: str
    number: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Advice:
    """Which method suits a fleet, how sure that is, and what it hinges on."""

    folder: Path
    facts: FleetFacts
    judge: Judge
    plan: Plan
    cases: Sequence[Case]
    candidates: Mapping[str, Candidate]
    settings: Mapping[str, str]
    refused: Mapping[str, str]
    race: Race
    scores: Scores
    by_case: Mapping[str, Scores]
    hinges: Sequence[Hinge]
    outcomes: Mapping[str, Mapping[tuple[str, int], Outcome]]
    spent: float
    budget: float
    warnings: Sequence[str] = ()  # what is odd about the log and the data

    @property
    def best(self) -> str | None:
        """The candidate that all others are behind; None where that is undecided."""
        return self.race.running[0] if self.race.decided and self.race.seeds else None

    @property
    def undecided(self) -> list[str]:
        """Those between which it was not decided, the simplest first."""
        return [] if self.best else list(self.race.running)

    @property
    def recommended(self) -> str:
        """The best, or the simplest of those that cannot be told from it."""
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
            words = f"{words_of(self.undecided)} are as good as each other {aim} (less than {self._margin()} apart)"
        return f"{words}; {self.recommended} is the simplest of them"

    def _margin(self) -> str:
        return "a twentieth of the bytes" if self.judge.aim.name == "bytes" else "half a point"

    def rows(self) -> list[Row]:
        """The ranking: still in by their mean, then those dropped, the last first, then those set aside."""
        leader, means = self.leader, {n: mean(s) for n, s in self.scores.items()}
        against = self.race.against(leader, self.scores) if self.race.seeds else {}
        running = sorted(self.race.running, key=lambda n: -means[n] if means[n] == means[n] else math.inf)
        found = []
        for name in running:
            s = against.get(name)
            gap = "–" if s is None or s.gap is None else self._gap(s.gap, s.low, s.high)
            state = "best" if name == self.best else "leads" if name == leader else "not distinguishable"
            state = state if self.race.seeds else "no look yet"
            ends = (None, None, None) if s is None else (s.gap, s.low, s.high)
            found.append(Row(name, means[name], len(self.scores[name]), gap, state, *ends))
        for d in sorted(self.race.dropped, key=lambda d: (-d.after, -d.gap)):
            gap = "diverged" if math.isnan(d.gap) else self._gap(d.gap, d.low, d.high)
            state = f"behind {d.by} after {d.after} seeds"
            ends = (None, None, None) if math.isnan(d.gap) else (d.gap, d.low, d.high)
            found.append(Row(d.name, means[d.name], d.after, gap, state, *ends))
        for name, other in self.race.same.items():
            found.append(Row(name, means[name], len(self.scores[name]), "0", f"the same as {other} here"))
        return found

    def _gap(self, gap: float, low: float | None, high: float | None) -> str:
        ends = sorted(((low or 0.0), (high or 0.0)), reverse=self.judge.aim.name == "bytes")
        return f"{self.judge.shown(gap)} ({self.judge.shown(ends[0])} to {self.judge.shown(ends[1])})"

    def score_text(self, score: float) -> str:
        """A score as people say it."""
        if math.isnan(score):
            return "–"
        if self.judge.aim.name == "bytes":
            return size(2**-score)
        return show(score if self.judge.higher else -score, self.judge.unit)

    def table(self) -> Table:
        """The ranking for a terminal."""
        aim = "bytes to target" if self.judge.aim.name == "bytes" else self.judge.metric
        table = Table(title=Text(f"{self.judge.aim.name}: {self.judge.aim.about}"), title_justify="left")
        for name, side in (
            ("candidate", "left"),
            (aim, "right"),
            ("seeds", "right"),
            ("difference", "right"),
            ("", "left"),
        ):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for row in self.rows():
            bold = "bold" if row.name == self.best else None
            table.add_row(row.name, self.score_text(row.score), str(row.seeds), row.gap, row.state, style=bold)
        return table

    def worlds(self) -> dict[str, Ranking]:
        """By world: those still in and plain FedAvg (over the seeds that all of them ran), compared."""
        found = {}
        for case, scores in self.by_case.items():
            names = [n for n in self.race.names if scores[n] and (n in self.race.running or n == PLAIN)]
            seeds = set.intersection(*(set(scores[n]) for n in names)) if names else set()
            found[case] = compare({n: {s: scores[n][s] for s in seeds} for n in names})
        return found

    def hinge_sentences(self) -> list[str]:
        """What the answer hinges on."""
        worlds = self.worlds() if len(self.cases) > 1 and self.race.seeds else {}  # after a first look at the race
        found = [f"in the {name} world: {words}" for name, ranking in worlds.items() if (words := ranking.sentence())]
        for hinge in self.hinges:
            best = hinge.ranking.best
            stays = " (as here)" if best is not None and best == self.best else ""
            found.append(f"{hinge.what}: {hinge.ranking.sentence()}{stays}")
        missing = {"turnout halved", "data more skewed"} - {h.what for h in self.hinges}
        return found + [f"{what}: not tried" for what in sorted(missing)]

    def cost(self) -> Cost | None:
        """What the recommended method costs in the worlds of the race, a mean over runs; None before any."""
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
        return [*found, *self.plan.notes(), *self._at_the_edge(), *NOT_TRIED]

    def _at_the_edge(self) -> list[str]:
        """Learning rates beyond those tried, for candidates that were best with the largest or the smallest."""
        tried = self.plan.settings()
        if len(tried) == 1:
            return []
        found = []
        for edge, where in ((tried[-1], "above"), (tried[0], "below")):
            names = [name for name, settings in self.settings.items() if settings == edge]
            who = f"all {len(names)} candidates" if len(names) == len(self.settings) else ", ".join(names)
            if names:
                found.append(f"learning rates {where} {edge}, the best of those tried for {who}")
        return found

    def recommended_experiment(self) -> Experiment:
        """The recommended method with its tuned settings, ready to run."""
        case = self.cases[min(1, len(self.cases) - 1)]
        made = self.candidates[self.recommended].on(case.lasting(self.plan.asked).experiment)
        every = max(1, self.plan.asked // 20)
        made = with_rate(made, self.plan.rate(self.settings[self.recommended])).but(title=self.recommended)
        return made.but(**{"evaluate.every": every})

    def data(self) -> dict[str, Any]:
        """Everything for programs: only what JSON can write."""
        rows = [
            {"candidate": row.name, "score": _number(row.score), "seeds": row.seeds, "difference": row.gap,
             "state": row.state, "settings": self.settings[row.name],
             "by_seed": {str(s): _number(v) for s, v in self.scores[row.name].items()}}
            for row in self.rows()
        ]  # fmt: skip
        return {
            "answer": self.sentence(),
            "best": self.best,
            "undecided": self.undecided,
            "recommended": self.recommended,
            "aim": self.judge.aim.name,
            "bound": BOUND,
            "ranking": rows,
            "worlds": {name: ranking.sentence() for name, ranking in self.worlds().items()},
            "hinges": {
                h.what: {"said": h.ranking.sentence(), "best": h.ranking.best, "seeds": h.seeds} for h in self.hinges
            },
            "cost": None if (cost := self.cost()) is None else cost.__dict__,
            "warnings": list(self.warnings),
            "not_tried": self.not_tried(),
            "seconds": round(self.spent, 1),
            "budget": self.budget,
        }

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from turnout.fleet.advice.page import short_html

        return short_html(self)


def write(advice: Advice) -> None:
    """The page, the recommended experiment and the numbers, into the advice's folder."""
    from turnout.fleet.advice.page import page

    heading = f"# {advice.sentence()}\n# turnout run {advice.folder / RECOMMENDED}\n\n"
    write_whole(advice.folder / RECOMMENDED, heading + to_toml(advice.recommended_experiment()))
    write_whole(advice.folder / DATA, json.dumps(advice.data(), indent=2) + "\n")
    write_whole(advice.folder / PAGE, page(advice))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
