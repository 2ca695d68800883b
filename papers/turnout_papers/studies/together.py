"""Study `together`: the papers' methods alone, in pairs and all at once, in a harsh world; what each piece is worth.

No paper has this table. The world is that of recipes/together.py: clusters of classes, clients that go up and down and
finish what their traces say, two who join late and two who leave. The accuracy of a run is its mean over the last fifth
of the rounds; personal accuracy is that of each member's own model on its own test data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from turnout.experiment import Experiment
from turnout.running.charts.lines import line_chart
from turnout.running.charts.svg import sheet
from turnout.statistics import BySeed
from turnout_papers.recipes import together as recipes
from turnout_papers.recipes.together import ALL, PAPERS, PLAIN, all_but
from turnout_papers.studies.claims import Claim, above, better, no_worse
from turnout_papers.studies.drawing import over_rounds
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row
from turnout_papers.studies.traffic import WAYS, by_bytes, megabytes, reached, spent, total, within

PERSONAL, WORST = "personal_accuracy", "personal_accuracy_worst"
MARGIN = 1.0  # points by which "at least as good" may miss
COST = 2.0  # points that ternary messages may cost
FEWER = 20.0  # times fewer bytes
DENSE = {ALL: all_but("ternary"), all_but("elastic"): all_but("elastic", "ternary")}  # the same with whole messages
SHOWN = (PLAIN, *PAPERS, ALL)  # in the picture


@dataclass(frozen=True)
class Case:
    """One data set. `target` is an accuracy to reach, `budget` bytes a client and round that a fleet might allow."""

    data: str
    clients: int
    rounds: int
    seeds: int
    target: float
    budget: float

    def experiments(self) -> dict[str, Experiment]:
        return {self.variant(name): e for name, e in RECIPES[self.data](self.clients, self.rounds).items()}

    def variant(self, name: str) -> str:
        return f"{self.data}: {name}"

    @property
    def allowed(self) -> float:
        """Bytes of the whole run within the budget."""
        return self.budget * self.clients * self.rounds

    @property
    def joins(self) -> int:
        """The round in which the first newcomer joins."""
        return self.rounds // 3


RECIPES = {"Digits": recipes.together, "MNIST": recipes.mnist_together, "CIFAR-10": recipes.cifar_together}
SIZES = {
    "smoke": [Case("Digits", 10, 6, 2, 0.3, 2e3)],
    "small": [Case("Digits", 30, 60, 5, 0.8, 2e3)],
    "paper": [Case("MNIST", 100, 200, 5, 0.9, 8e4), Case("CIFAR-10", 50, 120, 5, 0.4, 8e5)],
}


def plan(scale: str) -> Plan:
    return Plan([Part(case.data, case.experiments(), case.seeds) for case in SIZES[scale]], notes(scale))


def notes(scale: str) -> list[str]:
    found = [
        "plain is scheme A; " + "; ".join(f"paper {name} is {', '.join(pieces)}" for name, pieces in PAPERS.items()),
        "all but C is scheme B",
        "up for 4 rounds and down for 2 on average, all eight traces while up; two join after a third of the rounds, "
        "two leave in the second half; SGD everywhere, so paper 004 is its layers, not its Adam",
        "bytes: everything that travels both ways; u and v of the elastic term as their largest entries every 5 rounds",
        *(f"{c.data}: target {c.target:.0%}, budget {c.budget:,.0f} bytes a client and round" for c in SIZES[scale]),
        "the best single paper is chosen on the seeds it is compared on, which favours it",
    ]
    if scale == "paper":
        clients = ", ".join(f"{c.clients} clients and {c.rounds} rounds ({c.data})" for c in SIZES[scale])
        return [f"{clients}; a round's work is 20 mini-batches of 20", *found]
    return ["shrunk: 8x8 digits and one hidden layer of 50", *found]


def last(curve: Curve) -> float:
    """In points: the mean over the last fifth of the rounds."""
    return 100 * curve.end(5).mean()


def soon_after(start: int, length: int) -> Callable[[Curve], float]:
    """In points: the mean over the rounds after somebody has joined."""
    return lambda curve: 100 * curve.mean(after=start - 1, upto=start + length - 1)


def rows(scale: str, curves: Curves) -> list[Row]:
    return [found for case in SIZES[scale] for name in case.experiments() for found in _rows(case, name, curves)]


def _rows(case: Case, name: str, curves: Curves) -> list[Row]:
    if not curves.has(name):
        return [not_run(name, "accuracy")]
    runs = [(seed, curves.curves[name][seed], spent_T) for seed, spent_T in spent(curves, name).items()]
    ends = {seed: reached(curve, spent_T, case.target) for seed, curve, spent_T in runs}
    affordable = {seed: 100 * within(curve, spent_T, case.allowed) for seed, curve, spent_T in runs}
    there = {seed: end for seed, end in ends.items() if math.isfinite(end[0])}
    return [
        row(name, "accuracy", curves.each(name, last)),
        row(name, "personal accuracy", curves.of(PERSONAL).each(name, last)),
        row(name, "worst tenth", curves.of(WORST).each(name, last)),
        row(name, "MB", megabytes(total(curves, name))),
        row(name, "accuracy within the budget", affordable),
        row(name, f"seeds that reach {case.target:.0%}", {0: float(len(there))}),
        row(name, "rounds to it", {seed: end[0] for seed, end in there.items()}),
        row(name, "MB to it", {seed: end[1] / 1e6 for seed, end in there.items()}),
    ]


def claims(scale: str, curves: Curves) -> list[Claim]:
    return [claim for case in SIZES[scale] for claim in CaseNumbers(case, curves).claims()]


@dataclass(frozen=True)
class CaseNumbers:
    """The numbers of one data set."""

    case: Case
    curves: Curves

    def each(self, name: str, number: Callable[[Curve], float] = last, metric: str | None = None) -> dict[int, float]:
        found = self.curves if metric is None else self.curves.of(metric)
        return found.each(self.case.variant(name), number)

    def missing(self, *names: str) -> str | None:
        """Why a claim about these cannot be decided; None where they all ran."""
        variants = [self.case.variant(name) for name in names]
        return None if self.curves.has(*variants) else self.curves.why_missing(*variants)

    def claims(self) -> list[Claim]:
        return [*self._pieces(), *self._combination(), *self._ternary()]

    def _pieces(self) -> list[Claim]:
        """Each piece against the same run without it."""
        where, soon, found = self.case.data, max(1, self.case.rounds // 6), []
        newcomers = soon_after(self.case.joins, soon)
        compared: list[tuple[str, str, Callable[[Curve], float], str | None]] = [
            ("C", "accuracy", last, None),
            ("friends", "accuracy", last, None),
            ("personal", "personal accuracy", last, PERSONAL),
            ("fast-reboot", f"accuracy in the {soon} rounds after the first joins", newcomers, None),
        ]
        for piece, words, number, metric in compared:
            claim = f"{where}: {piece} improves all the others together, in {words}"
            if why := self.missing(ALL, all_but(piece)):
                found.append(Claim(claim, False, why))
                continue
            with_it, without = (self.each(name, number, metric) for name in (ALL, all_but(piece)))
            found.append(better(claim, with_it, without, "points"))
        return found

    def _combination(self) -> list[Claim]:
        found = []
        for words, metric in (("accuracy", None), ("personal accuracy", PERSONAL)):
            claim = f"{self.case.data}: all together are at least as good as the best single paper{{}}, in {words}"
            if why := self.missing(ALL, *PAPERS):
                found.append(Claim(claim.format(""), False, why))
                continue
            alone = {name: self.each(name, metric=metric) for name in PAPERS}
            best = max(alone, key=lambda name: _mean(alone[name]))
            ours = self.each(ALL, metric=metric)
            found.append(no_worse(claim.format(f" ({best})"), ours, alone[best], MARGIN, "points"))
        return found

    def _ternary(self) -> list[Claim]:
        """With the elastic term, whose u and v travel beside the messages, and without it."""
        found = []
        for name, dense in DENSE.items():
            where = f"{self.case.data}, {name}"
            cheap = f"{where}: ternary messages cost at most {COST:g} points of accuracy"
            few = f"{where}: with them at least {FEWER:g} times fewer bytes travel"
            if why := self.missing(name, dense):
                found += [Claim(claim, False, why) for claim in (cheap, few)]
                continue
            ours, theirs = (total(self.curves, self.case.variant(one)) for one in (name, dense))
            beyond = {seed: theirs[seed] / ours[seed] - FEWER for seed in ours}
            found.append(no_worse(cheap, self.each(name), self.each(dense), COST, "points"))
            found.append(above(few, beyond, unit=f"times beyond {FEWER:g}"))
        return found


def _mean(value: BySeed) -> float:
    return math.fsum(value.values()) / len(value)


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Accuracy over rounds and over bytes, personal accuracy over rounds: nothing, each paper, and all."""
    drawn = []
    for case in SIZES[scale]:
        names = {name: case.variant(name) for name in SHOWN if curves.has(case.variant(name))}
        if not names:
            continue
        drawn.append(line_chart(over_rounds(curves, names), f"{case.data}: accuracy", "round", "percent"))
        own = over_rounds(curves.of(PERSONAL), names)
        drawn.append(line_chart(own, f"{case.data}: personal accuracy", "round", "percent"))
        lines = [by_bytes(curves, variant, name, i) for i, (name, variant) in enumerate(names.items())]
        title = f"{case.data}: accuracy by bytes, up and down"
        drawn.append(line_chart(lines, title, "bytes", "percent", x_unit="bytes", log_x=True))
    return {"together.svg": sheet(drawn)} if drawn else {}


STUDY = Study(
    name="together",
    reproduces="no paper: all five methods in one harsh world, alone, in pairs and together; what each piece is worth",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    more=(PERSONAL, WORST, *WAYS),
)
