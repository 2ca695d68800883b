"""Li et al. (2020), FedProx on synthetic data: stragglers' partial work, and the proximal term (Figures 1, 2, 5 to 7).

30 devices, 10 of them asked in a round, E = 20 epochs, batches of 10, rate 0.01, logistic regression, 200 rounds. In
every round a share of the devices that are asked are stragglers, which finish 1 to E - 1 epochs. FedAvg leaves them
out, FedProx averages what they have done (μ = 0), and holds every device near the model it was sent (μ = 1, the best of
the authors' grid). The figures are curves without numbers; one number is in the text, 22 points at 90 % stragglers, a
mean over five data sets of which SYNTHETIC(1,1) is one. Scheme C, which scales partial work up, is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import turnout.models as models
from turnout.data import Synthetic
from turnout.data.sizes import LogNormal
from turnout.experiment import Algorithm, Experiment, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.selection import Count
from turnout.parts.substitution.base import Spread
from turnout.parts.terms.baselines import Proximal
from turnout.parts.weighting import ByWork, CompleteOnly, FedAvg
from turnout.rng import uniform
from turnout.world.participation import Participation
from turnout_papers.recipes import ONE_CORE
from turnout_papers.studies.claims import Claim, mean_over, within
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan, last_fifth, unrest

IID, *APART = TASKS = ("IID", "(0,0)", "(0.5,0.5)", "(1,1)")
FAR = APART[-1]
SLOW = (0, 50, 90)  # percent of the devices asked that are stragglers
AVG, PART, PROX, C = "FedAvg", "FedProx μ=0", "FedProx μ=1", "scheme C"
ALIKE = 2.0  # points within which methods are alike
EPOCHS = {"smoke": 4, "small": 20, "paper": 20}
ROUNDS = {"smoke": 3, "small": 60, "paper": 200}
SEEDS = {"smoke": 2, "small": 5, "paper": 10}


@dataclass(frozen=True)
class Stragglers(Participation):
    """Of the clients asked, all but round(n (1 - share)) finish a whole number of epochs between 1 and E - 1.

    share   of the cohort that are stragglers; which ones is drawn anew every round

    >>> done_C = Stragglers(0.5).fraction(torch.arange(10), t=0, full_work=20, seed=0)
    >>> int((done_C < 1).sum()), bool((done_C >= 1 / 20).all())
    (5, True)
    """

    share: float = 0.5

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        slow = len(client_C) - round(len(client_C) * (1 - self.share))
        slow_C = torch.zeros(len(client_C), dtype=torch.bool)
        slow_C[uniform(seed, "straggler", t, ids=client_C).argsort()[:slow]] = True
        epochs_C = 1 + (uniform(seed, "epochs", t, ids=client_C) * (full_work - 1)).floor()
        return torch.where(slow_C, epochs_C / full_work, 1.0)


METHODS: dict[str, dict[str, Any]] = {
    AVG: {"weighting": CompleteOnly(), "substitution": Spread()},
    PART: {"weighting": FedAvg()},
    PROX: {"weighting": FedAvg(), "terms": (Proximal(mu=1.0),)},
    C: {"weighting": ByWork()},
}


def variant(task: str, slow: int, method: str) -> str:
    return f"{task} {slow} % {AVG if method in (PART, C) and not slow else method}"  # without stragglers they are one


def experiment(task: str, slow: int, method: str, scale: str) -> Experiment:
    spread = 0.0 if task == IID else float(task.strip("()").split(",")[0])
    data = Synthetic(spread, spread, clients=30, iid=task == IID, sizes=LogNormal(), test_share=0.2)
    return Experiment(
        world=World(data, Stragglers(slow / 100)),
        model=models.Logistic(),
        algorithm=Algorithm(
            Local(SGD(lr=0.01), epochs=EPOCHS[scale], batch_size=10), selection=Count(10), **METHODS[method]
        ),
        rounds=ROUNDS[scale],
        runtime=ONE_CORE,
    )


def cases(scale: str) -> list[tuple[str, int, str]]:
    """Figures 2 and 6 (no stragglers, four tasks), 1 and 7 (SYNTHETIC(1,1)) and 5 (IID); the smallest scale has one."""
    late = [(FAR, slow, method) for slow in SLOW[1:] for method in METHODS]
    if scale == "smoke":
        return [(FAR, 0, AVG), (FAR, 0, PROX), *late]
    still = [(task, 0, method) for task in TASKS for method in (AVG, PROX)]
    return still + late + [(IID, slow, method) for slow in SLOW[1:] for method in (AVG, PART)]


def plan(scale: str) -> StudyPlan:
    variants = {variant(*case): experiment(*case, scale) for case in cases(scale)}
    notes = [
        "sizes are log-normal + 50, as in the authors' generator; a fifth of each device's samples are for testing, as "
        "the text has it (the code: a tenth); the data is drawn anew for every seed, the paper has one draw",
        "loss and accuracy are those of all devices' test samples; the paper's loss is that of training samples",
        "numbers are means over the last fifth of the rounds; the paper takes the round in which a run converges "
        "(loss changes by less than 0.0001), begins to diverge (rises by more than 1 in ten rounds) or ends",
        "scheme C is ours: partial work counts E / epochs done",
    ]
    shrunk = f"{ROUNDS[scale]} rounds" + (f", E = {EPOCHS[scale]}" if EPOCHS[scale] != EPOCHS["paper"] else "")
    return StudyPlan.at(scale, [Part("synthetic", variants, SEEDS[scale])], notes, shrunk)


def loss(curve: Curve) -> float:
    return curve.end(5).mean()


def shaking(curve: Curve) -> float:
    """Root mean square change of the loss from round to round, over the last half."""
    return unrest(curve) / 100


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    losses = curves.of("global_loss")
    for task, slow, method in cases(scale):
        name = variant(task, slow, method)
        case = f"SYNTHETIC{' ' * (task == IID)}{task}, {slow} % stragglers: {method}"
        yield curves.row(case, "accuracy, %", name, last_fifth)
        yield losses.row(case, "test loss", name, loss)
        yield losses.row(case, "its change a round", name, shaking)
        if slow and method != AVG:
            published = 22 if (task, slow, method) == (FAR, 90, PROX) else None
            pair = (name, variant(task, slow, AVG))
            yield curves.row(case, "accuracy over FedAvg, points", pair, last_fifth, published)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    losses = curves.of("global_loss")
    name = variant

    def lower(words: str, ours: str, theirs: str) -> Claim:
        return losses.better(words, theirs, ours, loss, "of loss")

    for less, more in pairwise(SLOW):
        words = f"SYNTHETIC(1,1): FedAvg's loss is higher with {more} % stragglers than with {less} %"
        yield lower(words, name(FAR, less, AVG), name(FAR, more, AVG))
    for slow in SLOW[1:]:
        where = f"SYNTHETIC(1,1), {slow} % stragglers"
        avg, part, prox = (name(FAR, slow, method) for method in (AVG, PART, PROX))
        yield lower(f"{where}: averaging partial work (μ = 0) has a lower loss than leaving it out", part, avg)
        yield curves.better(f"{where}: and a higher accuracy", part, avg, last_fifth)
        yield curves.better(f"{where}: FedProx (μ = 1) has a higher accuracy than FedAvg", prox, avg, last_fifth)
        yield losses.better(
            f"{where}: and is more stable (its loss changes less a round)", avg, prox, shaking, "a round"
        )
    for slow in SLOW:
        where = f"SYNTHETIC(1,1), {slow} % stragglers"
        part, prox = (name(FAR, slow, method) for method in (PART, PROX))
        yield lower(f"{where}: μ = 1 has a lower loss than μ = 0", prox, part)
        yield losses.better(f"{where}: and is more stable", part, prox, shaking, "a round")
    words = f"IID, 50 and 90 % stragglers: leaving them out or not is within {ALIKE:g} points"
    kept, left = (mean_over([curves.each(name(IID, slow, m), last_fifth) for slow in SLOW[1:]]) for m in (PART, AVG))
    yield within(words, kept, left, ALIKE, "points")
    for near, far in pairwise(TASKS):
        words = f"no stragglers: FedAvg's loss is higher on {far} than on {near}"
        yield lower(words, name(near, 0, AVG), name(far, 0, AVG))
    for task in APART[:-1]:
        yield lower(
            f"{task}, no stragglers: μ = 1 has a lower loss than μ = 0", name(task, 0, PROX), name(task, 0, AVG)
        )


def figures(scale: str) -> dict[str, list[Chart]]:
    late = []
    for slow in SLOW:
        lines = {method: variant(FAR, slow, method) for method in METHODS if slow or method in (AVG, PROX)}
        late.append(Chart(f"SYNTHETIC(1,1), {slow} % stragglers: accuracy", lines))
    still = [
        Chart(f"{task}, no stragglers: loss", {m: variant(task, 0, m) for m in (AVG, PROX)}, "global_loss", "number")
        for task in TASKS
    ]
    return {"stragglers.svg": late, "heterogeneity.svg": still}


STUDY = Study("fedprox", __doc__, "global_accuracy", plan, rows, claims, figures, more=("global_loss",), looks=(10,))
