"""McMahan et al. (2017), Table 1 and part of Table 2: rounds of FedAvg to 97 % (2NN) and 99 % (CNN) on MNIST.

100 clients, a share C of which is asked in a round (C = 0: one of them), batches of B (∞: all of a client's samples), E
epochs. IID, or two of 200 shards of the samples sorted by label each. The rate is chosen in each cell on a seed of its
own, from three steps of 10^(1/3), and judged on others. A run ends at its target, or at twice the published rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import turnout.models as models
from turnout.data import MNIST, Digits
from turnout.data.partition import IID, Shards
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, Stop, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.selection import Count, Selection
from turnout.settings import InProcess
from turnout_papers.recipes import ONE_CORE
from turnout_papers.recipes.multitask import asking
from turnout_papers.studies.claims import Claim, censored, sooner
from turnout_papers.studies.published import FEDAVG_ROUNDS
from turnout_papers.studies.study import (
    TUNING_SEEDS,
    Chart,
    Curve,
    Curves,
    Part,
    ResultRow,
    Study,
    StudyPlan,
    choose,
    row,
)

TARGETS = {"2NN": 0.97, "CNN": 0.99, "digits": 0.9}
NETWORKS: dict[str, Model] = {"2NN": models.MLP(200, 200), "CNN": models.mcmahan_cnn(), "digits": models.MLP(32)}
EPOCHS = {"2NN": 1, "CNN": 5, "digits": 1}
RATES = {10: (0.046, 0.1, 0.215), None: (0.1, 0.215, 0.464)}  # by B
MOST = {"smoke": 3, "small": 300, "paper": 4000}  # rounds
PRECISION = {"2NN": "float32", "CNN": "tf32"}
SEEDS = {"smoke": 2, "small": 5, "paper": 5}

Rounds = dict[int, int | None]  # to the target, by seed; None: it was not reached


@dataclass(frozen=True)
class Cell:
    """A cell of the table: a `share` of the clients is asked, batches are of `batch` samples, None for all."""

    network: str
    iid: bool
    batch: int | None
    share: float

    @property
    def name(self) -> str:
        split = "IID" if self.iid else "non-IID"
        return f"{self.network} {split} B={self.batch or 'all'} C={self.share:g}"

    @property
    def published(self) -> int | None:
        return FEDAVG_ROUNDS.get((self.network, self.iid, self.batch, self.share))

    def rounds(self, scale: str) -> int:
        return min(MOST[scale], 2 * (self.published or MOST[scale]))

    @property
    def data(self) -> DataSpec:
        partition = IID() if self.iid else Shards(2)
        if self.network == "digits":
            return Digits(clients=20, partition=partition, test_share=0.2)
        return MNIST(clients=100, partition=partition, test_share=0.0)


def cells(scale: str) -> list[Cell]:
    if scale != "paper":
        return [
            Cell("digits", iid, batch, share) for iid in (True, False) for batch in (10, None) for share in (0, 0.2)
        ]
    return [Cell(*key) for key in FEDAVG_ROUNDS]


def experiment(cell: Cell, rate: float, scale: str) -> Experiment:
    """One run; it stops at the target, as later rounds are not used."""
    selection: Selection = asking(cell.share) if cell.share else Count(1)
    local = Local(SGD(rate), epochs=EPOCHS[cell.network], batch_size=cell.batch or 600)
    return Experiment(
        world=World(cell.data),
        model=NETWORKS[cell.network],
        algorithm=Algorithm(local, selection=selection, nonfinite="absent"),
        rounds=cell.rounds(scale),
        stop=Stop(target=TARGETS[cell.network]),
        runtime=ONE_CORE if cell.network == "digits" else InProcess(precision=PRECISION[cell.network]),
    )


def tuned(cell: Cell, rate: float) -> str:
    return f"{cell.name} lr={rate:g}"


def plan(scale: str) -> StudyPlan:
    """The runs that rates are chosen on; `judged` gives those that are counted."""
    variants = {tuned(c, rate): experiment(c, rate, scale) for c in cells(scale) for rate in RATES[c.batch]}
    notes = [
        f"the rate of every cell chosen on seed {TUNING_SEEDS} and judged on {SEEDS[scale]} others: "
        f"B = 10 in {RATES[10]}, all samples in {RATES[None]}; the paper chose it on the run that it counts; "
        "where --only names one rate, that one is taken",
        "a run ends at its target or at twice the published rounds, which then count",
        "pixels in [0, 1], torch's first weights; the paper says of neither what it has",
        "the CNN's products rounded to TF32 where a GPU does that, as torch's convolutions are by default",
    ]
    shrunk = "8x8 digits, 20 clients, one hidden layer of 32, 90 %"
    return StudyPlan.at(scale, [Part("tuning", variants, 1, TUNING_SEEDS)], notes, shrunk)


def chosen(scale: str, cell: Cell, curves: Curves) -> float | None:
    """The rate of fewest rounds on the tuning seed; of equal ones that of the highest accuracy."""

    def score(curve: Curve) -> float:
        return -float(curve.rounds_to(TARGETS[cell.network]) or cell.rounds(scale)) + 0.5 * float(curve.value_T[-1])

    return choose(curves, {tuned(cell, rate): rate for rate in RATES[cell.batch]}, score, SEEDS[scale])


def judged(scale: str, curves: Curves) -> list[Part]:
    variants = {}
    for cell in cells(scale):
        if (rate := chosen(scale, cell, curves)) is not None:
            variants[cell.name] = experiment(cell, rate, scale)
    return [Part("judged", variants, SEEDS[scale])] if variants else []


def rounds_by_seed(curves: Curves, cell: Cell) -> Rounds:
    return {s: curve.rounds_to(TARGETS[cell.network]) for s, curve in curves.curves.get(cell.name, {}).items()}


def comparable(ours: Rounds, theirs: Rounds, our_last: int, their_last: int) -> list[Rounds]:
    """Both without the seeds in which a run was cut off before the other one arrived: that says nothing of the order.

    >>> comparable({0: 64, 1: None, 2: None}, {0: None, 1: 266, 2: 90}, our_last=100, their_last=774)
    [{0: 64, 2: None}, {0: None, 2: 90}]
    """

    def told_apart(seed: int) -> bool:
        a, b = ours[seed], theirs[seed]
        return (a is not None or (b or their_last) <= our_last) and (b is not None or (a or our_last) <= their_last)

    seeds = [seed for seed in ours if seed in theirs and told_apart(seed)]
    return [{seed: rounds[seed] for seed in seeds} for rounds in (ours, theirs)]


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for cell in cells(scale):
        found = rounds_by_seed(curves, cell)
        yield row(cell.name, "rounds", censored(found, cell.rounds(scale)), cell.published)
        yield row(cell.name, "share of seeds that get there", {s: float(r is not None) for s, r in found.items()})
        if (rate := chosen(scale, cell, curves)) is not None:
            yield ResultRow(cell.name, "chosen rate", f"{rate:g}", None, 0, None)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    """Small batches, more clients and IID data each need fewer rounds, all else being equal."""
    known = set(cells(scale))

    def fewer(ours: Cell, theirs: Cell, words: str) -> Iterator[Claim]:
        if {ours, theirs} <= known:
            found = [rounds_by_seed(curves, cell) for cell in (ours, theirs)]
            last = [cell.rounds(scale) for cell in (ours, theirs)]
            found = comparable(found[0], found[1], last[0], last[1])
            yield sooner(f"{theirs.name}: {words}", found[0], found[1], max(last))

    for cell in cells(scale):
        if cell.batch is None:
            yield from fewer(Cell(cell.network, cell.iid, 10, cell.share), cell, "with B = 10 in fewer rounds")
        if cell.share == 0:
            more = 0.1 if scale == "paper" else 0.2
            yield from fewer(Cell(cell.network, cell.iid, cell.batch, more), cell, f"with C = {more} in fewer rounds")
        if not cell.iid:
            yield from fewer(Cell(cell.network, True, cell.batch, cell.share), cell, "on IID data in fewer rounds")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Accuracy over the rounds until the target is reached, by network and split."""
    groups: dict[str, dict[str, str]] = {}
    for cell in cells(scale):
        title, _, label = cell.name.partition(" B=")
        groups.setdefault(title, {})[f"B={label}"] = cell.name
    return {"table1.svg": [Chart(f"{title}: accuracy", lines) for title, lines in groups.items()]}


STUDY = Study("fedavg", __doc__, "global_accuracy", plan, rows, claims, figures, then=judged)
