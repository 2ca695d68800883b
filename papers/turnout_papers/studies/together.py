"""No paper: all five methods in one harsh world, alone, in pairs and together; what each piece is worth.

The world is that of recipes/together.py: clusters of classes, clients that go up and down and finish what their traces
say, two that join late and two that leave. The accuracy of a run is its mean over the last fifth of the rounds;
personal accuracy is that of each member's own model on its own test data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from turnout.experiment import Experiment
from turnout_papers.recipes import together as recipes
from turnout_papers.recipes.together import ALL, PAPERS, PLAIN, all_but
from turnout_papers.studies.claims import Claim, above
from turnout_papers.studies.drawing import WAYS, megabytes, reached, spent, times_fewer, within
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan, last_fifth, row

PERSONAL, WORST = "personal_accuracy", "personal_accuracy_worst"
MARGIN = 1.0  # points by which "at least as good" may miss
COST = 2.0  # points that ternary messages may cost
FEWER = 20.0  # times fewer bytes
DENSE = {ALL: all_but("ternary"), all_but("elastic"): all_but("elastic", "ternary")}  # the same with whole messages
SHOWN = (PLAIN, *PAPERS, ALL)  # in the picture


@dataclass(frozen=True)
class HarshCase:
    """One data set: `target` is an accuracy to reach, `budget` bytes a client and round that a fleet might allow."""

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


RECIPES = {"Digits": recipes.together, "MNIST": recipes.mnist_together, "CIFAR-10": recipes.cifar_together}
SIZES = {
    "smoke": [HarshCase("Digits", 10, 6, 2, 0.3, 2e3)],
    "small": [HarshCase("Digits", 30, 60, 5, 0.8, 2e3)],
    "paper": [HarshCase("MNIST", 100, 200, 5, 0.9, 8e4), HarshCase("CIFAR-10", 50, 120, 5, 0.4, 8e5)],
}


def plan(scale: str) -> StudyPlan:
    parts = [Part(case.data, case.experiments(), case.seeds) for case in SIZES[scale]]
    notes = [
        "plain is scheme A; " + "; ".join(f"{name} is {', '.join(pieces)}" for name, pieces in PAPERS.items()),
        "all but C is scheme B",
        "up for 4 rounds and down for 2 on average, all eight traces while up; two join after a third of the rounds, "
        "two leave in the second half; SGD everywhere, so MTFL is its layers, not its Adam",
        "bytes: everything that travels both ways; u and v of the elastic term as their largest entries every 5 rounds",
        *(f"{c.data}: target {c.target:.0%}, budget {c.budget:,.0f} bytes a client and round" for c in SIZES[scale]),
        "the best single paper is chosen on the seeds it is compared on, which favours it",
    ]
    clients = ", ".join(f"{c.clients} clients and {c.rounds} rounds ({c.data})" for c in SIZES[scale])
    work = f"{clients}; a round's work is 20 mini-batches of 20"
    return StudyPlan(parts, [work if scale == "paper" else "shrunk: 8x8 digits and one hidden layer of 50", *notes])


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for case in SIZES[scale]:
        for name in case.experiments():
            runs = [(seed, curves.curves[name][seed], spent_T) for seed, spent_T in spent(curves, name).items()]
            ends = {seed: reached(curve, spent_T, case.target) for seed, curve, spent_T in runs}
            there = {seed: end for seed, end in ends.items() if math.isfinite(end[0])}
            allowed = case.budget * case.clients * case.rounds
            affordable = {seed: 100 * within(curve, spent_T, allowed) for seed, curve, spent_T in runs}
            yield curves.row(name, "accuracy", name, last_fifth)
            yield curves.of(PERSONAL).row(name, "personal accuracy", name, last_fifth)
            yield curves.of(WORST).row(name, "worst tenth", name, last_fifth)
            yield row(name, "MB", megabytes(curves, name))
            yield row(name, "accuracy within the budget", affordable)
            if ends:
                never = dict.fromkeys(ends, (math.nan, math.nan))
                yield row(name, f"seeds that reach {case.target:.0%}", {0: float(len(there))})
                yield row(name, "rounds to it", {seed: end[0] for seed, end in (there or never).items()})
                yield row(name, "MB to it", {seed: end[1] / 1e6 for seed, end in (there or never).items()})


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for case in SIZES[scale]:
        yield from _pieces(case, curves)
        yield from _combination(case, curves)
        yield from _ternary(case, curves)


def _pieces(case: HarshCase, curves: Curves) -> Iterator[Claim]:
    """Each piece against the same run without it."""
    joins, soon = case.rounds // 3, max(1, case.rounds // 6)

    def newcomers(curve: Curve) -> float:
        """In points: the mean over the rounds after the first newcomer has joined."""
        return 100 * curve.mean(after=joins - 1, upto=joins + soon - 1)

    for piece, words, number, measured in (
        ("C", "accuracy", last_fifth, curves),
        ("friends", "accuracy", last_fifth, curves),
        ("personal", "personal accuracy", last_fifth, curves.of(PERSONAL)),
        ("fast-reboot", f"accuracy in the {soon} rounds after the first joins", newcomers, curves),
    ):
        claim = f"{case.data}: {piece} improves all the others together, in {words}"
        yield measured.better(claim, case.variant(ALL), case.variant(all_but(piece)), number)


def _combination(case: HarshCase, curves: Curves) -> Iterator[Claim]:
    for words, measured in (("accuracy", curves), ("personal accuracy", curves.of(PERSONAL))):
        numbers = {name: measured.each(case.variant(name), last_fifth) for name in PAPERS}
        best = max(numbers, key=lambda name: math.fsum(numbers[name].values()) / max(1, len(numbers[name])))
        claim = f"{case.data}: all together are at least as good as the best single paper ({best}), in {words}"
        yield measured.better(claim, case.variant(ALL), case.variant(best), last_fifth, margin=MARGIN)


def _ternary(case: HarshCase, curves: Curves) -> Iterator[Claim]:
    """With the elastic term, whose u and v travel beside the messages, and without it."""
    for name, dense in DENSE.items():
        ours, theirs, where = case.variant(name), case.variant(dense), f"{case.data}, {name}"
        cheap = f"{where}: ternary messages cost at most {COST:g} points of accuracy"
        yield curves.better(cheap, ours, theirs, last_fifth, margin=COST)
        few = f"{where}: with them at least {FEWER:g} times fewer bytes travel"
        yield above(few, times_fewer(curves, theirs, ours, FEWER), unit=f"times beyond {FEWER:g}")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Accuracy over rounds and over bytes, personal accuracy over rounds: plain, each paper's method, and all."""
    charts = []
    for case in SIZES[scale]:
        lines = {name: case.variant(name) for name in SHOWN}
        charts.append(Chart(f"{case.data}: accuracy", lines))
        charts.append(Chart(f"{case.data}: personal accuracy", lines, PERSONAL))
        charts.append(Chart(f"{case.data}: accuracy by bytes, up and down", lines, bytes=True))
    return {"together.svg": charts}


STUDY = Study("together", __doc__, "global_accuracy", plan, rows, claims, figures, (PERSONAL, WORST, *WAYS))
