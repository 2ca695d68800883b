"""An advice: its answer in words, as a table and as data; advice_page.py has the page and the files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.fleet.advice.budget import RACING, UNTIL, RacePlan
from turnout.fleet.advice.candidates import NEARLY, NOT_TRIED, PLAIN, Candidate, Judge, rate_of, with_rate
from turnout.fleet.advice.cases import DEVICES, RaceCase
from turnout.fleet.advice.certainty import SEEDS_NEEDED, Certainty, RivalGap, upper_bound
from turnout.fleet.advice.levers import AS_NOW, PulledLever, lever_sentence
from turnout.fleet.advice.race import BOUND, LOOKS, Arm, Race, Scores, mean
from turnout.fleet.advice.trials import TrialOutcome
from turnout.fleet.diagnosis import Diagnosis
from turnout.running.charts.page import renderer
from turnout.running.charts.units import duration, show, size, title_of
from turnout.statistics import Ranking, compare, words_of

RunOutcomes = Mapping[tuple[str, int], TrialOutcome]  # by world and seed


render = renderer("turnout.fleet.advice")


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate in the ranking.

    name               of the candidate
    settings           its best learning rate, in words
    score              its mean score
    seeds              it ran
    collapses          seeds in which it collapsed
    gap                the difference to the leader (if it was dropped: to the candidate it was behind), in words
    state              its place in the race, in words
    number, low, high  the difference with its interval, if there is one
    """

    name: str
    settings: str
    score: float
    seeds: int
    collapses: int
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
    device_hours of all devices together
    energy       in kWh, if the watts of a device are known
    seconds      of a simulated run on this machine
    """

    up: float
    down: float
    rounds: int
    near_rounds: float | None
    near_bytes: float | None
    device_hours: float
    energy: float | None
    seconds: float

    def sentences(self, every: float | None) -> list[str]:
        """In words; `every`: the seconds from one round of the log to the next, if known."""
        found = [f"{self.rounds} rounds send {size(self.up)} up and {size(self.down)} down, all clients together"]
        if self.near_rounds is not None and self.near_bytes is not None:
            took = f"{self.near_rounds:.0f} rounds and {size(self.near_bytes)}"
            when = f", {duration(self.near_rounds * every)} at the log's pace" if every else ""
            found.append(f"{NEARLY:.0%} of plain FedAvg's final value after {took}{when}")
        if self.device_hours:
            energy = "" if self.energy is None else f", {self.energy:.3g} kWh"
            found.append(f"devices work for {self.device_hours:.3g} hours, all together{energy}")
        return found


def cost_of(
    found: RunOutcomes, plain: RunOutcomes, judge: Judge, rounds: int, watts: float | None = None
) -> Cost | None:
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
    hours = fmean(o.devices for o in runs) / 3600
    return Cost(
        up=fmean(o.up for o in runs),
        down=fmean(o.down for o in runs),
        rounds=rounds,
        near_rounds=fmean(t for t, _ in near) if all_near else None,
        near_bytes=fmean(sent for _, sent in near) if all_near else None,
        device_hours=hours,
        energy=None if watts is None else hours * watts / 1000,
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
    refused     candidates and levers that cannot run here, and why
    race        the state of the race at its end
    scores      by arm and seed
    by_case     the same in each world
    outcomes    by arm, world and seed
    rates       the learning rates that were tried, the lowest first
    edge        which further rates may be better; empty: none
    certainty   what holds of the candidate that is ahead; None if none is
    collapsed   the seeds in which each arm collapsed
    spent       seconds
    budget      seconds
    levers      settings of production, tried on the recommended method
    levers_on   the method that they were tried on
    watts       of a device at work, if known
    spent_on    seconds by what they were for
    warnings    about the log and the data
    """

    folder: Path
    facts: Diagnosis
    judge: Judge
    plan: RacePlan
    cases: Sequence[RaceCase]
    candidates: Mapping[str, Candidate]
    refused: Mapping[str, str]
    race: Race
    scores: Scores
    by_case: Mapping[str, Scores]
    outcomes: Mapping[Arm, RunOutcomes]
    rates: Sequence[str]
    edge: str
    certainty: Certainty | None
    collapsed: Mapping[Arm, int]
    spent: float
    budget: float
    levers: Sequence[PulledLever] = ()
    levers_on: str = ""
    watts: float | None = None
    spent_on: Mapping[str, float] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def ahead(self) -> str | None:
        """The candidate that all others are behind on this log; None if that is undecided."""
        return self.race.candidates[0] if self.race.decided and self.race.seeds else None

    @property
    def best(self) -> str | None:
        """The candidate that is ahead, would be on other logs of the fleet, and does not collapse; else None."""
        sure = self.certainty
        return self.ahead if sure is not None and sure.holds_for_fleet and sure.collapses_rarely else None

    @property
    def undecided(self) -> list[str]:
        """The candidates between which it was not decided, the simplest first."""
        return [] if self.ahead or not self.race.seeds else self.race.candidates

    @property
    def recommended(self) -> str | None:
        """The candidate that is ahead, or the simplest of the undecided; None if there was no comparison."""
        return self.race.candidates[0] if self.race.seeds else None

    def arm(self, name: str) -> Arm:
        """A candidate at its best learning rate."""
        return self.race.best_arm(name, self.scores)

    def sentence(self) -> str:
        """The answer."""
        aim = f"for {self.judge.aim.name}"
        if not self.race.seeds:
            spent = "the budget was spent before all candidates could be compared"
            return f"no recommendation {aim}: {spent}; {self.needed()}"
        if self.ahead and self.certainty:
            same = words_of([name for name, other in self.race.twins.items() if other == self.ahead])
            others = f" ({same} would do the very same here)" if same else ""
            if self.best:
                return f"{self.best} is best {aim}{others}: all other candidates are behind with 95 % confidence"
            return f"{self.ahead} is ahead {aim}{others} on this log, but not yet best: {self.missing()}"
        words = f"undecided between {words_of(self.undecided)} {aim} after {self.race.seeds} seeds"
        if self.race.level(self.scores, self.judge.margin):
            apart = "a twentieth of the bytes" if self.judge.aim.name == "bytes" else "half a point"
            words = f"{words_of(self.undecided)} are as good as each other {aim} (less than {apart} apart)"
        return f"{words}; {self.recommended} is the simplest of them"

    def needed(self) -> str:
        """The budget that a comparison takes, in words."""
        done = sum(len(runs) for runs in self.outcomes.values())
        first = LOOKS[0] * len(self.candidates) * len(self.cases)
        seconds = self.spent * first / max(1, done) / UNTIL[RACING]
        return f"--budget {max(1, math.ceil(seconds / 60))}min should be enough"

    def missing(self) -> str:
        """What the candidate that is ahead lacks to be the best, in words."""
        sure = self.certainty
        assert sure is not None
        found = []
        if open_ := [rival.name for rival in sure.rivals if not rival.decides]:
            rounds = "more seeds may show it"
            if needed := sure.rounds_needed:
                rounds = f"about {float(f'{needed:.2g}'):,.0f} rounds of log would decide"
            found.append(f"another log of this fleet might not put {words_of(open_)} behind ({rounds})")
        if not sure.collapses_rarely:
            found.append(f"{self.collapse_words(sure.arm)}, and best takes {SEEDS_NEEDED} seeds without a collapse")
        return "; ".join(found)

    def collapse_words(self, arm: Arm) -> str:
        """How often an arm collapsed, and the upper bound of its share of seeds."""
        seeds, found = len(self.scores[arm]), self.collapsed[arm]
        return f"it collapsed in {found} of {seeds} seeds (at most {100 * upper_bound(found, seeds):.1f} %)"

    def rows(self) -> list[RankedCandidate]:
        """The ranking: those still in by their mean, then those out, the last first, then those set aside."""
        if not self.race.seeds:
            return []
        leader, found = self.race.leader(self.scores), []
        against, over_logs = self.race.against(leader, self.scores), dict[str, RivalGap]()
        if self.certainty is not None:
            over_logs = {rival.name: rival for rival in self.certainty.rivals}
        gone = {one.arm: one for one in self.race.dropped}
        arms = {name: self.arm(name) for name in self.race.names if name not in self.race.twins}
        means = {name: mean(self.scores[arm]) for name, arm in arms.items()}

        def place(name: str) -> tuple[int, float]:
            after = gone[arms[name]].after if arms[name] in gone else math.inf
            return -int(min(after, 1e9)), -means[name] if math.isfinite(means[name]) else math.inf

        for name in sorted(arms, key=place):
            arm, s, rival = arms[name], against.get(name), over_logs.get(name)
            gap, ends = "–", tuple[float | None, float | None, float | None]((None, None, None))
            if rival is not None:
                gap, ends = self.gap_text(rival.gap, rival.low, rival.high), (rival.gap, rival.low, rival.high)
            elif arm in gone:
                d = gone[arm]
                diverged = math.isnan(d.gap)
                gap = "diverged" if diverged else self.gap_text(d.gap, d.low, d.high)
                ends = (None, None, None) if diverged else (d.gap, d.low, d.high)
            elif s is not None and s.gap is not None:
                gap, ends = self.gap_text(s.gap, s.low, s.high), (s.gap, s.low, s.high)
            state = f"behind {gone[arm].by} after {gone[arm].after} seeds" if arm in gone else "not distinguishable"
            if rival is not None and not rival.decides:
                state = f"behind {leader.candidate}, but maybe not on another log"
            if name == leader.candidate:
                state = "best" if name == self.best else "ahead on this log" if self.ahead else "leads"
            ran = len(self.scores[arm]), self.collapsed[arm]
            found.append(RankedCandidate(name, arm.settings, means[name], *ran, gap, state, *ends))
        for name, other in self.race.twins.items():
            arm, state = self.arm(name), f"the same as {other} here"
            ran = len(self.scores[arm]), self.collapsed[arm]
            found.append(RankedCandidate(name, arm.settings, mean(self.scores[arm]), *ran, "0", state))
        return found

    def gap_text(self, gap: float, low: float | None, high: float | None) -> str:
        """A difference with its interval."""
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
        """The ranking as shown: candidate, score, seeds, collapses, difference, state."""
        found = []
        for r in self.rows():
            collapses = f"{r.collapses} (≤ {100 * upper_bound(r.collapses, r.seeds):.0f} %)"
            found.append([r.name, self.score_text(r.score), str(r.seeds), collapses, r.gap, r.state])
        return found

    def table(self) -> Table:
        """The ranking for a terminal."""
        score = "bytes to target" if self.judge.aim.name == "bytes" else self.judge.metric
        table = Table(title=Text(f"{self.judge.aim.name}: {self.judge.aim.about}"), title_justify="left")
        for name in ("candidate", score, "seeds", "collapses", "difference", ""):
            table.add_column(name, justify="left" if name in ("candidate", "") else "right")
        for cells in self.cells():
            table.add_row(*cells, style="bold" if cells[0] == self.ahead else None)
        return table

    def worlds(self) -> dict[str, Ranking]:
        """By world: those still in and plain FedAvg, compared over the seeds that all of them ran."""
        found = {}
        for case, scores in self.by_case.items():
            arms = {n: self.arm(n) for n in self.race.names if n in self.race.candidates or n == PLAIN}
            names = {name: arm for name, arm in arms.items() if scores.get(arm)}
            seeds = set.intersection(*(set(scores[arm]) for arm in names.values())) if names else set()
            found[case] = compare({n: {s: scores[arm][s] for s in seeds} for n, arm in names.items()})
        return found

    def world_sentences(self) -> list[str]:
        """The answer in each world, after a first look at the race."""
        worlds = self.worlds() if len(self.cases) > 1 and self.race.seeds else {}
        return [f"in the {name} world: {words}" for name, ranking in worlds.items() if (words := ranking.sentence())]

    def cost(self) -> Cost | None:
        """The cost of the recommended method in the worlds of the race; None without a recommendation."""
        if self.recommended is None:
            return None
        plain = self.outcomes.get(self.arm(PLAIN), {}) if PLAIN in self.race.names else {}
        found = self.outcomes.get(self.arm(self.recommended), {})
        return cost_of(found, plain, self.judge, self.plan.rounds, self.watts)

    def cost_sentences(self) -> list[str]:
        cost = self.cost()
        return [] if cost is None else cost.sentences(self.facts.every)

    def lever_sentences(self) -> list[str]:
        """What each lever changes, beside the fleet as it is now."""
        now = next((one for one in self.levers if one.lever.name == AS_NOW), None)
        return [words for one in self.levers if now and (words := lever_sentence(one, now, self.judge))]

    def privacy_sentence(self) -> str:
        """The best of the private settings with what it costs; empty without any."""
        private = [one for one in self.levers if "algorithm.privacy" in one.lever.changes]
        now = next((one for one in self.levers if one.lever.name == AS_NOW), None)
        if not private or now is None:
            return ""
        one = max(private, key=lambda one: one.score)
        s, ends = one.against, ""
        if s is not None and s.gap is not None:
            ends = f", {self.gap_text(s.gap, s.low, s.high)} beside {self.levers_on} without privacy"
        accuracy = f"{title_of(self.judge.metric).lower()} {self.score_text(one.score)}{ends}"
        return f"private with {one.lever.name}: {one.lever.about}; {accuracy}"

    def next_steps(self) -> list[str]:
        """What to do with the answer: commands, and levers that help or save without a loss that matters."""
        if self.recommended is None:
            return [self.needed()]
        found = [f"try it: turnout run {self.folder / 'recommended.toml'}"]
        if self.certainty is not None and self.certainty.rounds_needed:
            found.append(f"log more: {self.missing()}")
        elif not self.best:
            more = "which of them" if not self.ahead else f"whether {self.ahead}"
            found.append(f"to know {more} is best: the same command with a larger --budget and --out {self.folder}")
        if private := self.privacy_sentence():
            return [*found, private]
        now = next((one for one in self.levers if one.lever.name == AS_NOW), None)
        for one in self.levers:
            s = one.against
            if s is None or s.gap is None or s.low is None or now is None:
                continue
            saves = min(one.device_hours / (now.device_hours or 1), one.round_takes / (now.round_takes or 1)) < 0.95
            if s.low > 0 or (saves and s.low > -self.judge.margin):
                found.append(f"change a setting: {lever_sentence(one, now, self.judge)}")
        return found

    def not_tried(self) -> list[str]:
        """What the advice does not know."""
        found = [f"{name}: {why}" for name, why in self.refused.items()]
        if not self.judge.aim.own_models:
            found.append("personal layers: they are for clients' own models (--for personal, --for worst-tenth)")
        if len(self.cases) > 1:
            found.append("your data and model: digits stood in for them; give an experiment file to race on yours")
        found += self.plan.notes()
        if self.edge:
            found.append(f"learning rates {self.edge}")
        return [*found, *NOT_TRIED]

    def recommended_experiment(self) -> Experiment:
        """The recommended method at its best learning rate, ready to run."""
        if self.recommended is None:
            raise UserError(self.sentence())
        case, arm = self.cases[min(1, len(self.cases) - 1)], self.arm(self.recommended)
        made = self.candidates[self.recommended].on(case.lasting(self.plan.asked).experiment)
        made = with_rate(made, rate_of(arm.settings)).but(title=self.recommended)
        if made.world.devices == DEVICES:  # they were assumed, to count hours
            made = made.but(**{"world.devices": None})
        return made.but(**{"evaluate.every": max(1, self.plan.asked // 20)})

    def data(self) -> dict[str, Any]:
        """Everything for programs, as JSON can write it."""

        def finite(value: float) -> float | None:
            return value if math.isfinite(value) else None

        cost = self.cost()
        return {
            "answer": self.sentence(),
            "best": self.best,
            "ahead": self.ahead,
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
                    "settings": row.settings,
                    "collapses": row.collapses,
                    "collapses_at_most": upper_bound(row.collapses, row.seeds),
                    "by_seed": {str(s): finite(v) for s, v in self.scores[Arm(row.name, row.settings)].items()},
                }
                for row in self.rows()
            ],
            "worlds": {name: ranking.sentence() for name, ranking in self.worlds().items()},
            "cost": None if cost is None else cost.__dict__,
            "over_logs": [] if self.certainty is None else [asdict(rival) for rival in self.certainty.rivals],
            "rounds_of_log_needed": 0 if self.certainty is None else self.certainty.rounds_needed,
            "levers": [
                {
                    "lever": one.lever.name,
                    "setting": one.lever.setting,
                    **{f.name: getattr(one, f.name) for f in fields(one) if f.name not in ("lever", "against")},
                    "difference": None if one.against is None else [one.against.gap, one.against.low, one.against.high],
                }
                for one in self.levers
            ],
            "spent_on": {step: round(seconds, 1) for step, seconds in self.spent_on.items()},
            "warnings": list(self.warnings),
            "not_tried": self.not_tried(),
            "seconds": round(self.spent, 1),
            "budget": self.budget,
        }

    def _repr_html_(self) -> str:
        """The answer and the ranking, for a notebook."""
        header = ["candidate", "score", "seeds", "collapses", "difference", ""]
        words = {"title": self.facts.path, "sentence": self.sentence(), "best": self.ahead}
        return render("comparison.html", header=header, rows=self.cells(), **words)
