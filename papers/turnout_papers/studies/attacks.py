"""No paper: hostile clients by share and by turnout, against robust aggregation.

Two parts. `shares`: a sign flip four times as long, by 0 to 40 % of the clients (45 % at paper scale), with all clients
there and with few of them there each round. `kinds`: 20 % of the clients with one attack after another. Where few turn
up, a minority of the clients sends the majority of the replies in some rounds, and no aggregation of a single round can
detect it.

The claims below were written before the first run. A run's accuracy is its mean over the last fifth of its rounds; a
round with a hostile majority is one in which at least half of the weight of the replies belongs to attackers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch

import turnout as to
import turnout.models as models
from turnout import SGD, Algorithm, Experiment, Local, Run, World
from turnout.data import MNIST, Backdoor, Digits, LabelFlip
from turnout.experiment import DataSpec, Model
from turnout.parts.weighting import ByWork, FedAvg, Shares
from turnout.world.participation import Always, Dropout
from turnout_papers.recipes import ONE_CORE
from turnout_papers.studies.claims import Claim, above, better
from turnout_papers.studies.study import Chart, Curves, Look, Part, ResultRow, Study, StudyPlan, last_fifth, row

MEAN, MEDIAN, TRIMMED, RFA, MULTI, CLIP = "mean", "median", "trimmed mean", "RFA", "multi-Krum", "norm clip"
METHODS: dict[str, to.aggregation.Aggregation] = {
    MEAN: to.aggregation.WeightedSum(),
    MEDIAN: to.aggregation.CoordinateMedian(),
    TRIMMED: to.aggregation.TrimmedMean(0.4),
    RFA: to.aggregation.GeometricMedian(),
    "Krum": to.aggregation.Krum(0.4),
    MULTI: to.aggregation.MultiKrum(0.4),
    CLIP: to.aggregation.NormClip(),
    "centred clip": to.aggregation.CentredClip(),
}
BY_SHARE = (MEAN, MEDIAN, TRIMMED, RFA, MULTI, CLIP)  # compared by share and turnout
VOTING = (MEDIAN, TRIMMED, RFA, MULTI)  # of these, the ones with a breakdown point of 0.4 or more
FLIP = to.attacks.SignFlip(4.0)
SOME = 0.2  # the attackers of `kinds`
FLIPPED, BACKDOOR, NOBODY = "label flip", "backdoor", "nobody"
ON_UPDATES: Mapping[str, tuple[to.attacks.Attack, ...]] = {
    "sign flip": (FLIP,),
    "noise": (to.attacks.Noise(10.0),),
    "ALIE": (to.attacks.ALIE(),),
    "inner product": (to.attacks.InnerProduct(1.0),),
    "little work, flipped": (to.attacks.ClaimWork(0.2), to.attacks.SignFlip()),
    "many samples, flipped": (to.attacks.ClaimExamples(20.0), to.attacks.SignFlip()),
    "free rider": (to.attacks.FreeRider(),),
}
KINDS_OF_ATTACK = (NOBODY, *ON_UPDATES, FLIPPED, BACKDOOR)
UNIFORM = "one vote each"


@dataclass(frozen=True)
class AttacksSize:
    """How large the study is at one scale.

    shares    of the clients that attack
    turnouts  shares of the clients that are there each round, most first
    on_gpu    whether it runs on a GPU where there is one
    """

    data: DataSpec
    model: Model
    rounds: int
    shares: tuple[float, ...]
    turnouts: tuple[float, ...]
    seeds: int
    epochs: int = 5
    batch: int = 10
    on_gpu: bool = False


DIGITS = Digits(clients=40, test_share=0.0)
SIZES = {
    "smoke": AttacksSize(replace(DIGITS, clients=10), models.Logistic(), 5, (0.0, 0.4), (1.0, 0.3), seeds=2),
    "small": AttacksSize(DIGITS, models.Logistic(), 30, (0.0, 0.1, 0.2, 0.3, 0.4), (1.0, 0.2), seeds=4),
    "paper": AttacksSize(
        MNIST(clients=100, test_share=0.0), models.MLP(200), 60, (0.0, 0.1, 0.2, 0.3, 0.4, 0.45), (1.0, 0.5, 0.1), 3,
        epochs=1, batch=20, on_gpu=True,
    ),
}  # fmt: skip


def experiment(size: AttacksSize, method: str, turnout: float = 1.0, **world: Any) -> Experiment:
    """Plain SGD, the mean over the replies; IID, so that honest updates are alike."""
    data = world.pop("data", size.data)
    there = Always() if turnout == 1 else Dropout(round(1 - turnout, 6))
    local = Local(SGD(lr=0.1), epochs=size.epochs, batch_size=size.batch)
    algorithm = Algorithm(local, weighting=FedAvg(), aggregation=METHODS[method], nonfinite="absent")
    found = Experiment(World(data, there, **world), size.model, algorithm, rounds=size.rounds)
    return found if size.on_gpu else found.but(runtime=ONE_CORE)


def by_share(share: float, turnout: float, method: str) -> str:
    return f"{100 * share:g} % hostile, {100 * turnout:g} % there, {method}"


def by_kind(kind: str, method: str) -> str:
    return f"{kind}, {method}"


def of_kind(size: AttacksSize, kind: str, method: str) -> Experiment:
    """20 % of the clients with one attack; clients that claim little work do so under scheme C, which pays for that."""
    if kind in (FLIPPED, BACKDOOR):
        wrapper = LabelFlip if kind == FLIPPED else Backdoor
        return experiment(size, method, data=wrapper(size.data, SOME))
    if kind == NOBODY:
        return experiment(size, method)
    found = experiment(size, method, attack=ON_UPDATES[kind], attackers=SOME)
    return found.but(**{"algorithm.weighting": ByWork()}) if kind.startswith("little work") else found


def plan(scale: str) -> StudyPlan:
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
    return StudyPlan([Part("shares", shares, size.seeds), Part("kinds", kinds, size.seeds)], notes)


WORST = 0.4  # the share of attackers that the claims are about


def look(run: Run) -> Look:
    """The hostile part of the weight in every round, and what a backdoor reached."""
    world, seed = run.experiment.world, run.experiment.seed
    with run.records() as records:
        columns = records.clients()
        hostile = to.attacks.hostile_clients(world.attackers if world.attack else 0.0, run.data().clients, seed).numpy()
        came = np.nan_to_num(columns["work"].astype(np.float64)) > 0
        votes = np.where(came, columns["share"].astype(np.float64), 0.0)
        bad = np.where(np.isin(columns["client"], hostile), votes, 0.0)
        at, rounds = columns["round"].astype(np.int64), run.experiment.rounds
        total = np.bincount(at, votes, rounds)
        found = {"hostile": np.bincount(at, bad, rounds) / np.maximum(total, 1e-300)}
    if isinstance(world.data, Backdoor):  # the percentage of marked samples of other labels taken for the target
        with torch.no_grad():
            label = run.model().eval()(world.data.marked_test(seed, run.data_dir)).argmax(1)
        found["backdoor"] = np.array([100 * float((label == world.data.target).double().mean())])
    return found


def majority_rounds(seen: Look) -> float:
    """Percent of the rounds in which at least half of the weight was hostile."""
    return 100 * float((seen["hostile"] >= 0.5).mean())


def step_lost(curves: Curves, variant: str) -> dict[int, float]:
    """How many points less accuracy rises in a round with a hostile majority than in others; NaN without both."""
    found = {}
    for seed, curve in curves.curves.get(variant, {}).items():
        step_T = 100 * np.diff(curve.value_T)
        bad_T = curves.looks[variant][seed]["hostile"][curve.round_T[1:]] >= 0.5
        both = bool(bad_T.any()) and not bool(bad_T.all())
        found[seed] = float(step_T[~bad_T].mean() - step_T[bad_T].mean()) if both else float("nan")
    return found


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for turnout, share in product(SIZES[scale].turnouts, SIZES[scale].shares):
        case = f"{100 * share:g} % hostile, {100 * turnout:g} % there"
        for method in BY_SHARE:
            yield curves.row(case, method, by_share(share, turnout, method), last_fifth)
        often = curves.seen(by_share(share, turnout, MEAN), majority_rounds)
        yield row(case, "rounds with a hostile majority, %", often)
    for kind, method in product(KINDS_OF_ATTACK, METHODS):
        yield curves.row(kind, method, by_kind(kind, method), last_fifth)
        if kind == BACKDOOR:
            yield row("backdoor: marked taken for the target, %", method, _reached(curves, method))


def _reached(curves: Curves, method: str) -> dict[int, float]:
    return curves.seen(by_kind(BACKDOOR, method), lambda seen: float(seen["backdoor"][0]))


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    most, least = SIZES[scale].turnouts[0], SIZES[scale].turnouts[-1]
    for method in VOTING:
        clean, worst = by_share(0.0, most, method), by_share(WORST, most, method)
        few = by_share(0.0, least, method), by_share(WORST, least, method)
        claim = f"without attackers {method} is at most 3 points below the mean"
        yield curves.better(claim, clean, by_share(0.0, most, MEAN), last_fifth, margin=3.0)
        claim = f"with 40 % hostile and everybody there {method} beats the mean"
        yield curves.better(claim, worst, by_share(WORST, most, MEAN), last_fifth)
        claim = f"{method} loses more to 40 % hostile with {100 * least:g} % there than with everybody there"
        yield curves.better(claim, few, (clean, worst), last_fifth)
        claim = f"with {100 * least:g} % there {method} gains less in rounds with a hostile majority than in others"
        yield above(claim, step_lost(curves, few[1]), unit="points")
    some = curves.seen(by_share(WORST, least, MEAN), majority_rounds)
    claim = f"40 % hostile clients are a majority in some rounds with {100 * least:g} % there"
    yield above(claim, some, unit="% of the rounds")
    yield from _by_kind_claims(curves)


def _by_kind_claims(curves: Curves) -> Iterator[Claim]:
    def compare(claim: str, ours: tuple[str, str], theirs: tuple[str, str], margin: float = 0.0) -> Claim:
        return curves.better(claim, by_kind(*ours), by_kind(*theirs), last_fifth, margin=margin)

    for kind in ("sign flip", "noise", "inner product", "little work, flipped", FLIPPED):
        for m in (MEDIAN, RFA):
            yield compare(f"{kind}: {m} beats the mean", (kind, m), (kind, MEAN))
    yield compare("ALIE: the mean beats the median", ("ALIE", MEAN), ("ALIE", MEDIAN))
    free = "free rider: the mean loses at most 3 points"
    yield compare(free, ("free rider", MEAN), (NOBODY, MEAN), margin=3.0)
    lied = "many samples, flipped"
    claim = f"{lied}: the median by one vote each beats the median by claimed samples"
    yield compare(claim, (lied, UNIFORM), (lied, MEDIAN))
    for method in (MEDIAN, CLIP):
        claim = f"backdoor: fewer marked samples are taken for the target under {method} than under the mean"
        yield better(claim, _reached(curves, MEAN), _reached(curves, method), "points")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Accuracy over the rounds, one chart for each share of attackers and turnout."""
    charts = []
    for turnout, share in product(SIZES[scale].turnouts, SIZES[scale].shares):
        lines = {method: by_share(share, turnout, method) for method in BY_SHARE}
        charts.append(Chart(f"{100 * share:g} % hostile, {100 * turnout:g} % there: accuracy", lines))
    return {"attacks.svg": charts}


STUDY = Study("attacks", __doc__, "global_accuracy", plan, rows, claims, figures, look=look)
