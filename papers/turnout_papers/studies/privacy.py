"""No paper: differential privacy with a promised separation, on MNIST and Fashion-MNIST.

Each client's data is protected with (ε, δ) for the participation that the server enforces: at least b rounds apart.
Independent, banded and buffered (BLT) noise have the same ε. Correlated noise cancels part of itself in the sum over
rounds: by the factor that the factorisation predicts for the last prefix sum. How much of that arrives as accuracy is
measured against independent noise that is smaller by the same factor (which has a larger ε): 100 % if both are equal.

The claims were written before the first run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

from turnout import SGD, Algorithm, Evaluate, Experiment, Local, Private, World, data, models, partition, selection
from turnout.parts.privacy.factorisation import factorise
from turnout_papers.studies.claims import Claim
from turnout_papers.studies.study import Chart, Curves, Part, ResultRow, Study, StudyPlan, last_fifth, row

INDEPENDENT, BANDED, BLT, LESS = NOISES = ("independent", "banded", "BLT", "independent, divided")
KINDS = {INDEPENDENT: "gaussian", BANDED: "banded", BLT: "blt", LESS: "gaussian"}
DELTA = 1e-5
CLIP = 0.3  # chosen among 0.1 and 0.3 on Fashion-MNIST with seed 0, independent noise at ε = 4


@dataclass(frozen=True)
class PrivacySize:
    """How large the study is at one scale; `clients` is at least `asked` times the largest separation."""

    sets: tuple[str, ...]
    epsilons: tuple[float, ...]
    separations: tuple[int, ...]
    clients: int
    asked: int
    rounds: int
    seeds: int


SIZES = {
    "smoke": PrivacySize(("digits",), (8.0,), (1, 5), 100, 20, 10, seeds=2),
    "small": PrivacySize(("digits",), (4.0, 16.0), (1, 10), 200, 20, 100, seeds=3),
    "paper": PrivacySize(("MNIST", "Fashion-MNIST"), (1.0, 2.0, 4.0, 8.0), (1, 10, 50), 5000, 100, 200, seeds=3),
}


def world(name: str, clients: int) -> World:
    sets = {"digits": data.Digits, "MNIST": data.MNIST, "Fashion-MNIST": data.FashionMNIST}
    return World(sets[name](clients=clients, partition=partition.Dirichlet(alpha=1.0)))


def gain(noise: str, size: PrivacySize, b: int) -> float:
    """Standard deviation of the noise in the last prefix sum, independent over correlated, at equal ε."""

    def last(kind: str) -> float:
        found = factorise(kind, size.rounds, b)
        return found.sensitivity(size.rounds, b) * math.sqrt(float(found.prefix_noise(size.rounds)[-1]))

    return last("gaussian") / last(KINDS[noise])


def noises(b: int) -> tuple[str, ...]:
    """A separation of 1 leaves nothing to correlate: banded noise is independent then."""
    return NOISES if b > 1 else (INDEPENDENT, BLT)


def variant(name: str, epsilon: float, b: int, noise: str) -> str:
    return f"{name} ε={epsilon:g} b={b} {noise}"


def plain(name: str) -> str:
    return f"{name} without privacy"


def experiment(name: str, size: PrivacySize, private: Private | None) -> Experiment:
    local = Local(SGD(lr=0.1), steps=5, batch_size=12)
    return Experiment(
        world=world(name, size.clients),
        model=models.Logistic(),
        algorithm=Algorithm(local=local, selection=selection.Count(size.asked), privacy=private),
        rounds=size.rounds,
        evaluate=Evaluate(every=max(1, size.rounds // 20)),
    )


def private(size: PrivacySize, epsilon: float, b: int, noise: str) -> Private:
    found = Private(CLIP, n0=size.asked, delta=DELTA, epsilon=epsilon, noise=KINDS[noise], min_separation=b)
    if noise != LESS:
        return found
    multiplier = found.tied(size.rounds).begin()["multiplier"] / gain(BANDED, size, b)
    return replace(found, epsilon=None, noise_multiplier=multiplier)


def cases(scale: str) -> list[tuple[str, float, int]]:
    size = SIZES[scale]
    return list(product(size.sets, size.epsilons, size.separations))


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    variants = {plain(name): experiment(name, size, None) for name in size.sets}
    for name, epsilon, b in cases(scale):
        for noise in noises(b):
            setting = private(size, epsilon, b, noise)
            variants[variant(name, epsilon, b, noise)] = experiment(name, size, setting)
    gains = ", ".join(
        f"b = {b}: {noise} {gain(noise, size, b):.2f}" for b in size.separations if b > 1 for noise in (BANDED, BLT)
    )
    notes = [
        f"{size.clients:,} clients (Dirichlet, α = 1), {size.asked} asked in each of {size.rounds} rounds, a linear "
        f"model, 5 local steps of up to 12 samples; C = {CLIP:g}, δ = {DELTA:g}, n0 = {size.asked}",
        f"predicted: the noise of the last prefix sum falls by a factor of {gains}",
        "independent, divided: independent noise divided by the factor of banded noise; its ε is larger than stated",
        "accuracy of a run: mean over the last fifth of its evaluations",
    ]
    return StudyPlan.at(scale, [Part("accuracy", variants, size.seeds)], notes, "8x8 digits, fewer clients and rounds")


def arrived(curves: Curves, name: str, epsilon: float, b: int, noise: str) -> dict[int, float]:
    """Percent of the predicted gain: accuracy gained by correlated noise, over that by independent noise divided."""
    found = {n: curves.each(variant(name, epsilon, b, n), last_fifth) for n in (INDEPENDENT, noise, LESS)}
    seeds = set.intersection(*(set(values) for values in found.values()))
    if not seeds:
        return {}
    possible = fmean(found[LESS][s] - found[INDEPENDENT][s] for s in seeds)
    return {s: 100 * (found[noise][s] - found[INDEPENDENT][s]) / possible for s in seeds} if possible > 0 else {}


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for name in SIZES[scale].sets:
        yield curves.row(name, "accuracy without privacy", plain(name), last_fifth)
    for name, epsilon, b in cases(scale):
        label = f"{name} ε={epsilon:g} b={b}"
        for noise in noises(b):
            yield curves.row(label, f"accuracy, {noise}", variant(name, epsilon, b, noise), last_fifth)
        for noise in (BANDED, BLT) if b > 1 else ():
            yield row(label, f"predicted gain that arrives, {noise}, %", arrived(curves, name, epsilon, b, noise))


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    size = SIZES[scale]
    for name, epsilon in product(size.sets, size.epsilons):
        label = f"{name} ε={epsilon:g}"
        first, last = size.separations[0], size.separations[-1]
        far, near = (variant(name, epsilon, b, INDEPENDENT) for b in (last, first))
        yield curves.better(
            f"{label}: a separation of {last} beats {first}, noise being independent", far, near, last_fifth
        )
        for b, noise in product(size.separations[1:], (BANDED, BLT)):
            ours, theirs = variant(name, epsilon, b, noise), variant(name, epsilon, b, INDEPENDENT)
            yield curves.better(f"{label} b={b}: {noise} noise beats independent noise", ours, theirs, last_fifth)


def figures(scale: str) -> dict[str, list[Chart]]:
    """Accuracy over the rounds at the smallest ε and the largest separation."""
    size = SIZES[scale]
    epsilon, b = size.epsilons[0], size.separations[-1]
    return {
        "privacy.svg": [
            Chart(
                f"{name}, ε = {epsilon:g}, b = {b}: accuracy",
                {"none": plain(name)} | {noise: variant(name, epsilon, b, noise) for noise in NOISES},
            )
            for name in size.sets
        ]
    }


STUDY = Study("privacy", __doc__, "global_accuracy", plan, rows, claims, figures)
