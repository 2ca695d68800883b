"""The experiments of study `attacks`: who attacks how, how many of them, and who is there.

Two parts. `shares`: a sign flip four times as long, by 0 to 40 % of the clients (45 % at paper scale), with everybody
there and with few of them there each round. `kinds`: 20 % of the clients with one attack after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import turnout.models as models
from turnout.data import MNIST, Backdoor, Digits, LabelFlip
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.parts.aggregation import Aggregation, WeightedSum
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.robust.clipping import CentredClip, NormClip
from turnout.parts.robust.coordinates import CoordinateMedian, TrimmedMean
from turnout.parts.robust.distances import GeometricMedian, Krum, MultiKrum
from turnout.parts.weighting import ByWork, FedAvg, Shares
from turnout.world.attacks import ALIE, Attack, ClaimExamples, ClaimWork, FreeRider, InnerProduct, Noise, SignFlip
from turnout.world.participation import Always, Dropout
from turnout_papers.studies.study import Part, Plan, on_one_core

MEAN, MEDIAN, TRIMMED, RFA, KRUM, MULTI, CLIP, CENTRED = METHODS = (
    "mean", "median", "trimmed mean", "RFA", "Krum", "multi-Krum", "norm clip", "centred clip",
)  # fmt: skip
PARTS: dict[str, Aggregation] = dict(
    zip(METHODS, (
        WeightedSum(), CoordinateMedian(), TrimmedMean(0.4), GeometricMedian(), Krum(0.4), MultiKrum(0.4), NormClip(),
        CentredClip(),
    ), strict=True)
)  # fmt: skip
BY_SHARE = (MEAN, MEDIAN, TRIMMED, RFA, MULTI, CLIP)  # what is compared by share and turnout
VOTING = (MEDIAN, TRIMMED, RFA, MULTI)  # of these, those with a breakdown point of 0.4 or more
FLIP = SignFlip(4.0)
SOME = 0.2  # the attackers of `kinds`
FLIPPED, BACKDOOR, NOBODY = "label flip", "backdoor", "nobody"
ON_UPDATES: Mapping[str, tuple[Attack, ...]] = {
    "sign flip": (FLIP,),
    "noise": (Noise(10.0),),
    "ALIE": (ALIE(),),
    "inner product": (InnerProduct(1.0),),
    "little work, flipped": (ClaimWork(0.2), SignFlip()),
    "many samples, flipped": (ClaimExamples(20.0), SignFlip()),
    "free rider": (FreeRider(),),
}
KINDS_OF_ATTACK = (NOBODY, *ON_UPDATES, FLIPPED, BACKDOOR)
UNIFORM = "one vote each"


@dataclass(frozen=True)
class Size:
    """How large the study is at one scale."""

    data: DataSpec
    model: Model
    rounds: int
    shares: tuple[float, ...]  # of the clients that attack
    turnouts: tuple[float, ...]  # most first
    seeds: int
    epochs: int = 5
    batch: int = 10
    on_gpu: bool = False  # where there is one


DIGITS = Digits(clients=40, test_share=0.0)
SIZES = {
    "smoke": Size(replace(DIGITS, clients=10), models.Logistic(), 5, (0.0, 0.4), (1.0, 0.3), seeds=2),
    "small": Size(DIGITS, models.Logistic(), 30, (0.0, 0.1, 0.2, 0.3, 0.4), (1.0, 0.2), seeds=4),
    "paper": Size(
        MNIST(clients=100, test_share=0.0),
        models.MLP(200),
        60,
        (0.0, 0.1, 0.2, 0.3, 0.4, 0.45),
        (1.0, 0.5, 0.1),
        3,
        epochs=1,
        batch=20,
        on_gpu=True,
    ),
}


def experiment(size: Size, method: str, turnout: float = 1.0, **world: Any) -> Experiment:
    """Plain SGD, the mean over those who replied; IID, so that honest updates are alike."""
    data = world.pop("data", size.data)
    there = Always() if turnout == 1 else Dropout(round(1 - turnout, 6))
    local = Local(SGD(lr=0.1), epochs=size.epochs, batch_size=size.batch)
    algorithm = Algorithm(local, weighting=FedAvg(), aggregation=PARTS[method], nonfinite="absent")
    found = Experiment(World(data, there, **world), size.model, algorithm, rounds=size.rounds)
    return found if size.on_gpu else on_one_core(found)


def by_share(share: float, turnout: float, method: str) -> str:
    """What one of the experiments is called.

    >>> by_share(0.4, 0.2, "median")
    '40 % hostile, 20 % there, median'
    """
    return f"{100 * share:g} % hostile, {100 * turnout:g} % there, {method}"


def by_kind(kind: str, method: str) -> str:
    return f"{kind}, {method}"


def of_kind(size: Size, kind: str, method: str) -> Experiment:
    """20 % of the clients with one attack; who claims little work does it under scheme C, which pays for that."""
    if kind in (FLIPPED, BACKDOOR):
        wrapper = LabelFlip if kind == FLIPPED else Backdoor
        return experiment(size, method, data=wrapper(size.data, SOME))
    if kind == NOBODY:
        return experiment(size, method)
    found = experiment(size, method, attack=ON_UPDATES[kind], attackers=SOME)
    return found.but(**{"algorithm.weighting": ByWork()}) if kind.startswith("little work") else found


def plan(scale: str) -> Plan:
    size = SIZES[scale]
    shares = {
        by_share(share, turnout, method): experiment(
            size, method, turnout, **({"attack": (FLIP,), "attackers": share} if share else {})
        )
        for share in size.shares
        for turnout in size.turnouts
        for method in BY_SHARE
    }
    kinds = {by_kind(kind, method): of_kind(size, kind, method) for kind in KINDS_OF_ATTACK for method in METHODS}
    lied = "many samples, flipped"
    kinds[by_kind(lied, UNIFORM)] = of_kind(size, lied, MEDIAN).but(**{"algorithm.shares": Shares(by="uniform")})
    notes = [
        "no paper's: the claims were written before the first run",
        f"{type(size.data).__name__}, {size.data.clients} clients, IID; {size.rounds} rounds of "  # type: ignore[attr-defined]
        f"{size.epochs} epoch{'s' * (size.epochs > 1)} in batches of {size.batch}, plain SGD",
        "by share: attackers send -4 times their update; trimmed mean, Krum and multi-Krum are set for 40 % hostile",
        f"by kind: {100 * SOME:g} % of the clients attack, everybody is there",
        "accuracy of a run: mean over the last fifth of its rounds",
    ]
    return Plan([Part("shares", shares, size.seeds), Part("kinds", kinds, size.seeds)], notes)
