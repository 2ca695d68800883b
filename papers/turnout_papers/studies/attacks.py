"""No paper: hostile clients by share and by turnout, against robust aggregation.

Two parts. `shares`: a sign flip four times as long, by 0 to 40 % of the clients (45 % at paper scale), with all clients
there and with few of them there each round. `kinds`: 20 % of the clients with one attack after another. Where few turn
up, a minority of the clients sends the majority of the replies in some rounds, and no aggregation of a single round can
detect it.

The claims below were written before the first run. A run's accuracy is its mean over the last fifth of its rounds; a
round with a hostile majority is one in which at least half of the weight of the replies belongs to attackers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import turnout.models as models
from turnout.data import MNIST, Backdoor, Digits, LabelFlip
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.parts.aggregation import Aggregation, WeightedSum
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.robust import CentredClip, CoordinateMedian, GeometricMedian, Krum, MultiKrum, NormClip, TrimmedMean
from turnout.parts.weighting import ByWork, FedAvg, Shares
from turnout.running.result import Run
from turnout.world.attacks import (
    ALIE,
    Attack,
    ClaimExamples,
    ClaimWork,
    FreeRider,
    InnerProduct,
    Noise,
    SignFlip,
    hostile_clients,
)
from turnout.world.participation import Always, Dropout
from turnout_papers.recipes import ONE_CORE
from turnout_papers.studies.claims import Claim, above, better
from turnout_papers.studies.drawing import Chart, band, picture
from turnout_papers.studies.study import Curves, Look, Part, ResultRow, Study, StudyPlan, last_fifth, row

MEAN, MEDIAN, TRIMMED, RFA, MULTI, CLIP = "mean", "median", "trimmed mean", "RFA", "multi-Krum", "norm clip"
METHODS: dict[str, Aggregation] = {
    MEAN: WeightedSum(),
    MEDIAN: CoordinateMedian(),
    TRIMMED: TrimmedMean(0.4),
    RFA: GeometricMedian(),
    "Krum": Krum(0.4),
    MULTI: MultiKrum(0.4),
    CLIP: NormClip(),
    "centred clip": CentredClip(),
}
BY_SHARE = (MEAN, MEDIAN, TRIMMED, RFA, MULTI, CLIP)  # compared by share and turnout
VOTING = (MEDIAN, TRIMMED, RFA, MULTI)  # of these, the ones with a breakdown point of 0.4 or more
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
        hostile = hostile_clients(world.attackers if world.attack else 0.0, run.data().clients, seed).numpy()
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
    for seed, curve in curves.curves[variant].items():
        step_T = 100 * np.diff(curve.value_T)
        bad_T = curves.looks[variant][seed]["hostile"][curve.round_T[1:]] >= 0.5
        both = bool(bad_T.any()) and not bool(bad_T.all())
        found[seed] = float(step_T[~bad_T].mean() - step_T[bad_T].mean()) if both else float("nan")
    return found


def rows(scale: str, curves: Curves) -> list[ResultRow]:
    size, found = SIZES[scale], []
    for turnout in size.turnouts:
        for share in size.shares:
            case = f"{100 * share:g} % hostile, {100 * turnout:g} % there"
            names = {method: by_share(share, turnout, method) for method in BY_SHARE}
            if not curves.has(*names.values()):
                found.append(row(case, "mean", None))
                continue
            found += [curves.row(case, method, name, last_fifth) for method, name in names.items()]
            found.append(row(case, "rounds with a hostile majority, %", curves.seen(names[MEAN], majority_rounds)))
    for kind in KINDS_OF_ATTACK:
        for method in METHODS:
            name = by_kind(kind, method)
            found.append(curves.row(kind, method, name, last_fifth))
            if kind == BACKDOOR and curves.has(name):
                found.append(row("backdoor: marked taken for the target, %", method, _reached(curves, method)))
    return found


def _reached(curves: Curves, method: str) -> dict[int, float]:
    return curves.seen(by_kind(BACKDOOR, method), lambda seen: float(seen["backdoor"][0]))


def claims(scale: str, curves: Curves) -> list[Claim]:
    """Each of the two parts is decided where its runs are there."""
    size = SIZES[scale]
    ends = (size.turnouts[0], size.turnouts[-1])
    shares = [by_share(s, q, m) for s in (0.0, WORST) for q in ends for m in (MEAN, *VOTING)]
    kinds = [by_kind(kind, method) for kind in KINDS_OF_ATTACK for method in METHODS]
    words = "hostile clients and robust aggregation, by {}"
    by_shares = curves.undecided([words.format("share")], *shares) or _by_share_claims(*ends, curves)
    return by_shares + (curves.undecided([words.format("kind")], *kinds) or _by_kind_claims(curves))


def _by_share_claims(most: float, least: float, curves: Curves) -> list[Claim]:
    found = []
    for method in VOTING:
        clean, worst = by_share(0.0, most, method), by_share(WORST, most, method)
        few = by_share(0.0, least, method), by_share(WORST, least, method)
        claim = f"without attackers {method} is at most 3 points below the mean"
        found.append(curves.better(claim, clean, by_share(0.0, most, MEAN), last_fifth, margin=3.0))
        claim = f"with 40 % hostile and everybody there {method} beats the mean"
        found.append(curves.better(claim, worst, by_share(WORST, most, MEAN), last_fifth))
        claim = f"{method} loses more to 40 % hostile with {100 * least:g} % there than with everybody there"
        found.append(curves.better(claim, few, (clean, worst), last_fifth))
        claim = f"with {100 * least:g} % there {method} gains less in rounds with a hostile majority than in others"
        found.append(above(claim, step_lost(curves, few[1]), unit="points"))
    some = curves.seen(by_share(WORST, least, MEAN), majority_rounds)
    claim = f"40 % hostile clients are a majority in some rounds with {100 * least:g} % there"
    return [*found, above(claim, some, unit="% of the rounds")]


def _by_kind_claims(curves: Curves) -> list[Claim]:
    def compare(claim: str, ours: tuple[str, str], theirs: tuple[str, str], margin: float = 0.0) -> Claim:
        return curves.better(claim, by_kind(*ours), by_kind(*theirs), last_fifth, margin=margin)

    found = []
    for kind in ("sign flip", "noise", "inner product", "little work, flipped", FLIPPED):
        found += [compare(f"{kind}: {m} beats the mean", (kind, m), (kind, MEAN)) for m in (MEDIAN, RFA)]
    found.append(compare("ALIE: the mean beats the median", ("ALIE", MEAN), ("ALIE", MEDIAN)))
    free = "free rider: the mean loses at most 3 points"
    found.append(compare(free, ("free rider", MEAN), (NOBODY, MEAN), margin=3.0))
    lied = "many samples, flipped"
    claim = f"{lied}: the median by one vote each beats the median by claimed samples"
    found.append(compare(claim, (lied, UNIFORM), (lied, MEDIAN)))
    for method in (MEDIAN, CLIP):
        claim = f"backdoor: fewer marked samples are taken for the target under {method} than under the mean"
        found.append(better(claim, _reached(curves, MEAN), _reached(curves, method), "points"))
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Accuracy over the share of attackers, one chart for each turnout; and how often they are a majority."""
    size = SIZES[scale]
    names = [by_share(share, turnout, m) for turnout in size.turnouts for share in size.shares for m in BY_SHARE]
    if not curves.has(*names):
        return {}
    charts: list[Chart] = []
    often = []
    for j, turnout in enumerate(size.turnouts):
        lines = [
            band(m, size.shares, [curves.each(by_share(s, turnout, m), last_fifth) for s in size.shares], i, 0.01)
            for i, m in enumerate(BY_SHARE)
        ]
        charts.append((f"accuracy, {100 * turnout:g} % there", "share of the clients that attack", lines))
        values = [curves.seen(by_share(s, turnout, MEAN), majority_rounds) for s in size.shares]
        often.append(band(f"{100 * turnout:g} % there", size.shares, values, j, 0.01))
    charts.append(("rounds with a hostile majority", "share of the clients that attack", often))
    return {"attacks.svg": picture(charts, "percent")}


STUDY = Study("attacks", __doc__, "global_accuracy", plan, rows, claims, pictures, look=look)
