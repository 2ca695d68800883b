"""Karimireddy et al. (2020), SCAFFOLD, Table 3: rounds to 50 % on EMNIST, by local epochs and by similarity of clients.

Logistic regression, 100 clients, 20 of them asked in a round, an epoch is five steps of a fifth of a client's samples.
With s % similarity a client has s % of its samples at random and the others from the list sorted by label. SGD takes a
step a round with all of a client's samples. FedProx has μ = 1, SCAFFOLD is its option II. The rate is chosen for each
cell on a seed of its own, and judged on others. A run ends at its target, or after the rounds of its scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

import turnout.models as models
from turnout.data import EMNIST, Digits
from turnout.data.partition import Partition
from turnout.errors import check_settings
from turnout.experiment import Algorithm, DataSpec, Experiment, Stop, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.selection import Count
from turnout.parts.terms.base import Term
from turnout.parts.terms.baselines import Proximal
from turnout.parts.terms.control_variates import Scaffold
from turnout.rng import rng
from turnout.settings import InProcess
from turnout_papers.recipes import ONE_CORE
from turnout_papers.studies.claims import Claim, censored, sooner
from turnout_papers.studies.published import SCAFFOLD_ROUNDS
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

TARGETS = {"smoke": 0.8, "small": 0.8, "paper": 0.5}
GD, AVG, PROX, OURS = "SGD", "FedAvg", "FedProx", "SCAFFOLD"
TERMS: dict[str, tuple[Term, ...]] = {GD: (), AVG: (), PROX: (Proximal(mu=1.0),), OURS: (Scaffold(option=2),)}
RATES = (0.03, 0.1, 0.3, 1.0)
LARGER = (0.3, 1.0, 3.0, 10.0)  # of SGD, whose step is of all samples
ROUNDS = {"smoke": 3, "small": 100, "paper": 1000}
TUNING_ROUNDS = 200  # at most
SEEDS = {"smoke": 2, "small": 5, "paper": 5}
SAMPLES = {"smoke": 70, "small": 70, "paper": 1000}  # of a client


@dataclass(frozen=True)
class Similar(Partition):
    """A share of every client's samples at random, the others from the list sorted by label (Hsu et al., 2019).

    share   of a client's samples that are drawn at random

    >>> rows_C = Similar(0.5).split(torch.tensor([0, 1] * 4), None, clients=2, seed=0)
    >>> [len(rows) for rows in rows_C], len(torch.cat(rows_C).unique())
    ([4, 4], 8)
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_settings(self, share="[0, 1]")

    def split(
        self, label_S: Tensor, owner_S: Tensor | None, clients: int, seed: int, want_C: Tensor | None = None
    ) -> list[Tensor]:
        mixed_S = torch.randperm(len(label_S), generator=rng(seed, "partition", "similar"))
        drawn_S, rest_S = mixed_S.split([cut := round(self.share * len(mixed_S)), len(mixed_S) - cut])
        rest_S = rest_S[label_S[rest_S].argsort(stable=True)]
        halves = zip(drawn_S.tensor_split(clients), rest_S.tensor_split(clients), strict=True)
        rows_C = [torch.cat(both) for both in halves]
        if want_C is None:
            return rows_C
        order_C = [
            torch.randperm(len(rows), generator=rng(seed, "partition", "trim", c)) for c, rows in enumerate(rows_C)
        ]
        return [rows[order[:want]] for rows, order, want in zip(rows_C, order_C, want_C.tolist(), strict=True)]


@dataclass(frozen=True)
class Cell:
    """A cell of the table: `epochs` of local work, clients of which `similar` percent of the samples are drawn."""

    method: str
    epochs: int
    similar: int

    @property
    def name(self) -> str:
        return f"{self.method} E={self.epochs} {self.similar} %"

    def rates(self, scale: str) -> tuple[float, ...]:
        known = LARGER if self.method == GD else RATES
        return known[1:3] if scale == "smoke" else known

    @property
    def published(self) -> float | str | None:
        return SCAFFOLD_ROUNDS[self.method, self.epochs, self.similar]


def cells(scale: str) -> list[Cell]:
    known = [Cell(*key) for key in SCAFFOLD_ROUNDS]
    if scale == "paper":
        return known
    epochs, similar = ((1, 10), (0, 100)) if scale == "small" else ((1,), (0,))
    return [c for c in known if c.epochs in epochs and c.similar in similar]


def experiment(cell: Cell, rate: float, scale: str, most: int | None = None) -> Experiment:
    """One run, of `most` rounds at most; it stops at the target, as later rounds are not used."""
    partition, own = Similar(cell.similar / 100), SAMPLES[scale]
    data: DataSpec = EMNIST(clients=100, partition=partition, test_share=0.0)
    if scale != "paper":
        data = Digits(clients=20, partition=partition, test_share=0.0)
    local = Local(SGD(rate), epochs=cell.epochs, batch_size=own // 5)
    if cell.method == GD:
        local = Local(SGD(rate), steps=1, batch_size=own)
    algorithm = Algorithm(local, TERMS[cell.method], selection=Count(20 if scale == "paper" else 4), nonfinite="absent")
    return Experiment(
        world=World(data),
        model=models.Logistic(),
        algorithm=algorithm,
        rounds=min(ROUNDS[scale], most or ROUNDS[scale]),
        stop=Stop(target=TARGETS[scale]),
        runtime=InProcess() if scale == "paper" else ONE_CORE,
    )


def tuned(cell: Cell, rate: float) -> str:
    return f"{cell.name} lr={rate:g}"


def plan(scale: str) -> StudyPlan:
    """The runs that rates are chosen on; `judged` gives those that are counted."""
    variants = {
        tuned(c, rate): experiment(c, rate, scale, TUNING_ROUNDS) for c in cells(scale) for rate in c.rates(scale)
    }
    notes = [
        f"the rate of every cell chosen on seed {TUNING_SEEDS} in {TUNING_ROUNDS} rounds and judged on {SEEDS[scale]} "
        f"others: SGD in {LARGER}, the others in {RATES}; the paper tunes it for each method and prints none",
        f"a run that is not there after {ROUNDS[scale]} rounds counts as {ROUNDS[scale]}",
        "pixels in [0, 1], torch's first weights; the paper says of neither what it has",
    ]
    paper = [
        "EMNIST here is the official by-class test split (62 classes), cut into 100,000 samples for training, 1,000 a "
        "client, and 16,323 for testing; the paper does not say which split it has",
    ]
    shrunk = "8x8 digits, 20 clients, 4 asked, 80 %"
    return StudyPlan.at(scale, [Part("tuning", variants, 1, TUNING_SEEDS)], notes, shrunk, paper)


def chosen(scale: str, cell: Cell, curves: Curves) -> float | None:
    """The rate of fewest rounds on the tuning seed; of equal ones that of the highest accuracy."""

    def score(curve: Curve) -> float:
        return -float(curve.rounds_to(TARGETS[scale]) or ROUNDS[scale]) + 0.5 * float(curve.value_T[-1])

    return choose(curves, {tuned(cell, rate): rate for rate in cell.rates(scale)}, score, SEEDS[scale])


def judged(scale: str, curves: Curves) -> list[Part]:
    variants = {}
    for cell in cells(scale):
        if (rate := chosen(scale, cell, curves)) is not None:
            variants[cell.name] = experiment(cell, rate, scale)
    return [Part("judged", variants, SEEDS[scale])] if variants else []


def rounds_by_seed(scale: str, curves: Curves, cell: Cell) -> dict[int, int | None]:
    return {s: curve.rounds_to(TARGETS[scale]) for s, curve in curves.curves.get(cell.name, {}).items()}


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for cell in cells(scale):
        found = rounds_by_seed(scale, curves, cell)
        published = cell.published if scale == "paper" else None
        yield row(cell.name, "rounds", censored(found, ROUNDS[scale]), published)
        yield row(cell.name, "share of seeds that get there", {s: float(r is not None) for s, r in found.items()})
        if (rate := chosen(scale, cell, curves)) is not None:
            yield ResultRow(cell.name, "chosen rate", f"{rate:g}", None, 0, None)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    """What the text says of the table, cell by cell."""
    epochs = sorted({c.epochs for c in cells(scale)})
    similar = sorted({c.similar for c in cells(scale)})

    def fewer(words: str, ours: tuple[str, int, int], theirs: tuple[str, int, int]) -> Claim:
        found = [rounds_by_seed(scale, curves, Cell(*key)) for key in (ours, theirs)]
        return sooner(words, found[0], found[1], ROUNDS[scale])

    for s in similar:
        for e in epochs:
            where = f"{s} % similar, E = {e}"
            yield fewer(f"{where}: SCAFFOLD is sooner than FedAvg", (OURS, e, s), (AVG, e, s))
            yield fewer(f"{where}: SCAFFOLD is sooner than SGD", (OURS, e, s), (GD, 1, s))
            yield fewer(f"{where}: FedProx is later than FedAvg", (AVG, e, s), (PROX, e, s))
    for less, more in pairwise(epochs):
        yield fewer(f"0 % similar: FedAvg is later with E = {more} than {less}", (AVG, less, 0), (AVG, more, 0))
        for method in (AVG, OURS):
            words = f"100 % similar: {method} is sooner with E = {more} than {less}"
            yield fewer(words, (method, more, 100), (method, less, 100))
    yield fewer(f"0 % similar: FedAvg with E = {epochs[-1]} is later than SGD", (GD, 1, 0), (AVG, epochs[-1], 0))
    for method in (AVG, OURS):
        words = f"E = {epochs[-1]}: {method} is sooner with all samples drawn than with none"
        yield fewer(words, (method, epochs[-1], 100), (method, epochs[-1], 0))


def figures(scale: str) -> dict[str, list[Chart]]:
    """Accuracy over the rounds until the target is reached, by method and similarity."""
    groups: dict[str, dict[str, str]] = {}
    for cell in cells(scale):
        groups.setdefault(f"{cell.method}, {cell.similar} % similar", {})[f"E={cell.epochs}"] = cell.name
    return {"table3.svg": [Chart(f"{title}: accuracy", lines) for title, lines in groups.items()]}


STUDY = Study("scaffold", __doc__, "global_accuracy", plan, rows, claims, figures, then=judged, looks=(5,))
