"""A benchmark of turnout: every method that makes a common model, in 25 worlds.

Five data sets that come with packages (bench/data.py) and five kinds of turnout (bench/turnouts.py). Every method has
as many tries of its learning rate in every world, on a seed of its own, and is judged on others. What is compared is
the accuracy of the common model on everybody's test samples, those of absent clients too: the mean over the last fifth
of the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

import turnout as to
import turnout.models as models
from turnout import SGD, Adam, Algorithm, Evaluate, Experiment, Local, World
from turnout.parts.server import ServerAdam
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, FedAvg, FedNova
from turnout_papers.bench.data import DATA, DIGITS, Halves
from turnout_papers.bench.pictures import Standings, critical_difference, heat_map
from turnout_papers.bench.turnouts import turnouts
from turnout_papers.recipes import ONE_CORE
from turnout_papers.studies.claims import Claim, above, difference, mean_over
from turnout_papers.studies.study import (
    TUNING_SEEDS,
    Curves,
    Part,
    ResultRow,
    Study,
    StudyPlan,
    choose,
    last_fifth,
)

METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"weighting": FedAvg()},
    "scheme A": {"weighting": CompleteOnly()},
    "scheme B": {"weighting": ByShare()},
    "scheme C": {"weighting": ByWork()},
    "FedNova": {"weighting": FedNova()},
    "FedProx": {"terms": (to.terms.Proximal(mu=0.1),)},
    "SCAFFOLD": {"terms": (to.terms.Scaffold(),)},
    "FedGATE": {"terms": (to.terms.FedGATE(),)},
    "MimeLite": {"terms": (to.terms.MimeLite(),)},
    "EFL": {"terms": (to.terms.Elastic(strength=0.01, reduce="mean"),), "weighting": ByWork()},
    "friends": {"substitution": to.substitution.Friends(), "weighting": ByShare()},
    "stale": {"substitution": to.substitution.Stale(), "weighting": ByShare()},
    "server Adam": {"server": ServerAdam(lr=0.03)},
    "distributed Adam": {},
}
ADAM = "distributed Adam"  # its clients step by Adam: a tenth of the rate


@dataclass(frozen=True)
class BenchSize:
    """How large the benchmark is at one scale."""

    data: dict[str, Halves]
    methods: tuple[str, ...]
    rounds: int
    rates: tuple[float, ...]
    seeds: int


SIZES = {
    "smoke": BenchSize({"digits": DIGITS}, ("FedAvg", "scheme C"), rounds=3, rates=(0.1, 0.3), seeds=2),
    "small": BenchSize({"digits": DIGITS}, tuple(METHODS), rounds=40, rates=(0.1, 0.3, 1.0), seeds=3),
    "paper": BenchSize(DATA, tuple(METHODS), rounds=60, rates=(0.03, 0.1, 0.3, 1.0, 3.0), seeds=3),
}


def variant(data: str, turnout: str, method: str, rate: float | None = None) -> str:
    return f"{data}, {turnout}, {method}" + ("" if rate is None else f", lr={rate:g}")


def worlds(scale: str) -> list[tuple[str, str]]:
    return list(product(SIZES[scale].data, turnouts(1)))


def experiment(scale: str, data: str, turnout: str, method: str, rate: float) -> Experiment:
    size = SIZES[scale]
    optimizer = Adam(lr=rate / 10, beta1=0.9, beta2=0.999) if method == ADAM else SGD(rate)
    return Experiment(
        world=World(size.data[data], turnouts(size.rounds)[turnout]),
        model=models.MLP(32),
        algorithm=Algorithm(Local(optimizer, steps=10, batch_size=10), nonfinite="absent", **METHODS[method]),
        rounds=size.rounds,
        evaluate=Evaluate(every=3),
        runtime=ONE_CORE,
    )


def plan(scale: str) -> StudyPlan:
    """The runs that rates are chosen on; `judged` gives those that are compared."""
    size = SIZES[scale]
    variants = {
        variant(data, turnout, method, rate): experiment(scale, data, turnout, method, rate)
        for (data, turnout), method, rate in product(worlds(scale), size.methods, size.rates)
    }
    notes = [
        f"learning rate in {size.rates} (a tenth of it for {ADAM}) chosen in every world for every method on seed "
        f"{TUNING_SEEDS}, judged on {size.seeds} others; other settings are the defaults, and not tuned",
        f"{size.rounds} rounds of 10 mini-batches of 10, one hidden layer of 32; everybody is asked in every round",
        "left out: VRL-SGD, which is FedGATE here (nothing is compressed, the server's rate is 1); APFL, FedAMP and "
        "personal layers, which make clients' own models; methods that need a clock (FedBuff)",
    ]
    shrunk = "8x8 digits, 20 clients of two classes"
    return StudyPlan.at(scale, [Part("tuning", variants, 1, TUNING_SEEDS)], notes, shrunk)


def chosen(scale: str, data: str, turnout: str, method: str, curves: Curves) -> float | None:
    options = {variant(data, turnout, method, rate): rate for rate in SIZES[scale].rates}
    return choose(curves, options, last_fifth, SIZES[scale].seeds)


def judged(scale: str, curves: Curves) -> list[Part]:
    variants = {}
    for (data, turnout), method in product(worlds(scale), SIZES[scale].methods):
        if (rate := chosen(scale, data, turnout, method, curves)) is not None:
            variants[variant(data, turnout, method)] = experiment(scale, data, turnout, method, rate)
    return [Part("judged", variants, SIZES[scale].seeds)] if variants else []


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for data, turnout in worlds(scale):
        for method in SIZES[scale].methods:
            yield curves.row(f"{data}, {turnout}", method, variant(data, turnout, method), last_fifth)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    """Every method against FedAvg by kind of turnout: the mean over data sets of what it gains, seed by seed."""
    for turnout, method in product(turnouts(1), SIZES[scale].methods[1:]):
        gains = []
        for data in SIZES[scale].data:
            ours, theirs = (curves.each(variant(data, turnout, m), last_fifth) for m in (method, "FedAvg"))
            gains += [difference(ours, theirs)] if ours and theirs else []
        yield above(
            f"{turnout}: {method} > FedAvg (mean over data sets)", mean_over(gains) if gains else {}, 0.0, "points"
        )


def standings(scale: str, curves: Curves) -> Standings | None:
    """The worlds in which every method was run: means over seeds, -∞ where a run diverged."""
    methods = SIZES[scale].methods
    there = [w for w in worlds(scale) if curves.has(*(variant(*w, m) for m in methods))]
    value = [[float(np.mean(list(curves.each(variant(*w, m), last_fifth).values()))) for w in there] for m in methods]
    return Standings(methods, there, np.array(value)) if there else None


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    found = standings(scale, curves)
    if found is None:
        return {}
    return {
        "heat-map.svg": heat_map(found, "Points behind the best method"),
        "critical-difference.svg": critical_difference(found, "Mean ranks"),
    }


STUDY = Study("bench", __doc__, "global_accuracy", plan, rows, claims, then=judged, pictures=pictures)
