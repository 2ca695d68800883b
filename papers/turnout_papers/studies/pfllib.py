"""PFLlib (Zhang et al., 2025), its leaderboard's Fashion-MNIST columns: 20 clients with few labels, one or many models.

All clients are asked, one epoch in batches of 10, rate 0.005, a CNN of two 5x5 convolutions and 512 units. Pathological
is two labels a client, practical is Dirichlet(0.1). FedAvg, FedProx and SCAFFOLD are measured by the common model, APFL
and FedAMP by clients' own, each by its best round. The leaderboard has no MNIST, no SCAFFOLD and no 100 clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import turnout.models as models
from turnout.data import Digits, FashionMNIST
from turnout.data.partition import Classes, Dirichlet, Partition
from turnout.experiment import Algorithm, DataSpec, Evaluate, Experiment, World
from turnout.parts.local import Local
from turnout.parts.mixing import FedAMP
from turnout.parts.optimizers import SGD
from turnout.parts.terms.baselines import APFL, Proximal
from turnout.parts.terms.control_variates import Scaffold
from turnout.settings import InProcess
from turnout_papers.recipes import ONE_CORE
from turnout_papers.studies.claims import Claim, better
from turnout_papers.studies.efl import best
from turnout_papers.studies.published import PFLLIB_FASHION
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan

METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"terms": (Proximal(mu=0.01),)},
    "SCAFFOLD": {"terms": (Scaffold(),)},
    "APFL": {"terms": (APFL(alpha=1.0),)},
    "FedAMP": {"mixing": FedAMP(alpha=1.0, sigma=1.0), "terms": (Proximal(mu=1.0),)},
}
COMMON, OWN = ("FedAvg", "FedProx", "SCAFFOLD"), ("APFL", "FedAMP")
SPLITS: dict[str, Partition] = {"pathological": Classes(2), "practical": Dirichlet(0.1, min_size=40)}
ROUNDS = {"smoke": 2, "small": 40, "paper": 200}
SEEDS = {"smoke": 2, "small": 5, "paper": 3}


def variant(split: str, method: str) -> str:
    return f"{split} {method}"


def experiment(split: str, method: str, scale: str) -> Experiment:
    data: DataSpec = FashionMNIST(clients=20, partition=SPLITS[split], local_test="official", mean=(0.5,), std=(0.5,))
    model: Any = models.CNN(channels=(32, 64), kernel=5, hidden=(512,))
    if scale != "paper":
        data = Digits(clients=10, partition=Classes(2) if split == "pathological" else Dirichlet(0.1, 10))
        model = models.MLP(32)
    rate = 0.005 if scale == "paper" else 0.05
    return Experiment(
        world=World(data),
        model=model,
        algorithm=Algorithm(Local(SGD(rate), epochs=1, batch_size=10), nonfinite="absent", **METHODS[method]),
        rounds=ROUNDS[scale],
        evaluate=Evaluate(every=max(1, ROUNDS[scale] // 100)),
        runtime=InProcess(precision="tf32") if scale == "paper" else ONE_CORE,
    )


def plan(scale: str) -> StudyPlan:
    variants = {variant(s, m): experiment(s, m, scale) for s in SPLITS for m in METHODS}
    paper = [
        f"{ROUNDS['paper']} rounds where the leaderboard has 2,000; the best counts, measured every second round",
        "a client's test samples are a part of the official test set with its own mix of labels; the leaderboard mixes "
        "both sets and keeps a quarter of what a client gets. Own models: the mean over clients (there: over samples)",
        "FedProx μ = 0.01, APFL begins with α = 1, FedAMP α = σ = 1, λ = 1; the leaderboard does not print its own",
        "products rounded to TF32",
    ]
    shrunk = "8x8 digits, 10 clients, one hidden layer of 32, rate 0.05"
    return StudyPlan.at(scale, [Part("fashion", variants, SEEDS[scale])], [], shrunk, paper)


def of(curves: Curves, method: str) -> Curves:
    return curves.of("personal_accuracy") if method in OWN else curves


def best_round(curve: Curve) -> float:
    return float(curve.round_T[curve.value_T.argmax()]) + 1


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for split in SPLITS:
        for method in METHODS:
            name, found = variant(split, method), of(curves, method)
            published = PFLLIB_FASHION.get((split, method)) if scale == "paper" else None
            yield found.row(name, "best accuracy, %", name, best, published)
            yield found.row(name, "in round", name, best_round)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    """The order of the leaderboard: own models far above common ones, FedProx no better than FedAvg."""
    for split in SPLITS:
        name = {method: variant(split, method) for method in METHODS}
        common = curves.each(name["FedAvg"], best)
        for method in OWN:
            mine = of(curves, method).each(name[method], best)
            yield better(f"{split}: {method}'s own models are above FedAvg's common one", mine, common, "points")
        yield better(f"{split}: FedAvg is above FedProx", common, curves.each(name["FedProx"], best), "points")
    for method in (*OWN, "FedAvg"):
        first, second = ("pathological", "practical") if method in OWN else ("practical", "pathological")
        ours, theirs = (of(curves, method).each(variant(split, method), best) for split in (first, second))
        yield better(f"{method} is better in the {first} split than in the {second} one", ours, theirs, "points")


def figures(scale: str) -> dict[str, list[Chart]]:
    charts = [Chart(f"{split}: common model", {m: variant(split, m) for m in COMMON}) for split in SPLITS]
    charts += [
        Chart(f"{split}: clients' own models", {m: variant(split, m) for m in OWN}, "personal_accuracy")
        for split in SPLITS
    ]
    return {"pfllib.svg": charts}


STUDY = Study(
    "pfllib", __doc__, "global_accuracy", plan, rows, claims, figures, more=("personal_accuracy",), looks=(3,)
)
