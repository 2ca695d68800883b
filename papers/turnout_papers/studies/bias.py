"""Flexible participation, Table 1: distance to the optimum under schemes A, B, C on strongly convex quadratics.

Client k holds F_k(w) = mean (x w - x w_k*)² over its own samples, so the optimum w* of F = Σ p_k F_k is the solution of
all samples together. Under scheme C the distance to it goes to zero while all clients are active; A and B stop at a
floor that grows with the heterogeneity of participation and of the optima.

The central test set is the identity matrix with w* as targets: its mean squared error is |w - w*|² / dimension, so the
distance is an ordinary metric of an ordinary run.

Shape letters: C clients, S samples of a client, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from turnout import SGD, Algorithm, Experiment, InverseClock, Local, UserError, World
from turnout.data import Own, Pooled
from turnout.parts.weighting import Weighting
from turnout.rng import rng
from turnout.settings import InProcess
from turnout.tasks import Regression
from turnout.world.participation import Homogeneous, Participation, Traces
from turnout_papers.recipes.flexible import SCHEMES
from turnout_papers.studies.claims import Claim, better, mean_over
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan, row

DIMENSION, SAMPLES = 10, 50
FULL_WORK, RATE = 5, 0.2


@dataclass(frozen=True)
class Quadratics:
    """Least-squares problems, one for each client, with optima w_k* = 1 + spread · N(0, I) and x ~ N(0, I).

    clients  how many
    spread   how far apart their optima are
    absent   so many of the last clients have not arrived

    >>> data = Quadratics(clients=4).load(seed=0)
    >>> data.clients, data.input_shape, tuple(data.central_test()[0].shape)
    (4, (10,), (10, 10))
    """

    clients: int = 20
    spread: float = 1.0
    absent: int = 0

    def __post_init__(self) -> None:
        if self.clients <= self.absent or self.spread < 0:
            raise UserError(f"{self}: need clients > absent >= 0, spread >= 0")

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        x_CSD, y_CS = (part[: self.clients - self.absent] for part in self.problems(seed))
        owner = torch.arange(len(x_CSD)).repeat_interleave(SAMPLES)
        test = torch.eye(DIMENSION), optimum(x_CSD, y_CS).float()
        names = [f"{client:04d}" for client in owner.tolist()]  # owners are ordered by name
        return Own(x_CSD.flatten(0, 1), y_CS.flatten(), names, test=test, test_share=0.0).load(seed)

    def problems(self, seed: int) -> tuple[Tensor, Tensor]:
        g = rng(seed, "quadratics")
        x_CSD = torch.randn(self.clients, SAMPLES, DIMENSION, generator=g)
        optimum_CD = 1 + self.spread * torch.randn(self.clients, DIMENSION, generator=g)
        return x_CSD, torch.einsum("csd,cd->cs", x_CSD, optimum_CD)


def optimum(x_CSD: Tensor, y_CS: Tensor) -> Tensor:
    """w* = argmin Σ_k p_k F_k with equal p_k: the normal equations of all samples together, in float64."""
    x_RD, y_R = x_CSD.flatten(0, 1).double(), y_CS.flatten().double()
    return torch.linalg.solve(x_RD.T @ x_RD, x_RD.T @ y_R)


def linear(input_shape: tuple[int, ...]) -> nn.Module:
    """y = x w, from w = 0."""
    model = nn.Linear(input_shape[0], 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


@dataclass(frozen=True)
class BiasSize:
    """How large the study is at one scale; `rounds` is T, and runs last for 4T."""

    clients: int
    rounds: int
    seeds: int


SIZES = {"smoke": BiasSize(6, 3, 2), "small": BiasSize(20, 20, 5), "paper": BiasSize(100, 500, 10)}


@dataclass(frozen=True)
class Level:
    """A degree of heterogeneity: how clients participate, and how far apart (`spread`) their optima are."""

    name: str
    participation: Participation
    spread: float = 1.0


HOMOGENEOUS = Level("everybody on T30", Homogeneous("T30"))
MILD = Level("T0 or T30", Traces(names=("T0", "T30")))
STRONG = Level("T0 or T90", Traces(names=("T0", "T90")))
APART = Level("T0 or T90, optima twice as far apart", Traces(names=("T0", "T90")), spread=2.0)
LEVELS = (HOMOGENEOUS, MILD, STRONG, APART)
HETEROGENEOUS = (MILD, STRONG, APART)


def variant(level: Level, scheme: str) -> str:
    return f"{level.name} {scheme}"


def experiment(level: Level, weighting: Weighting, size: BiasSize) -> Experiment:
    """Full-batch steps, E = 5, η0 / (t + 1): nothing is random but who finishes how much."""
    local = Local(SGD(lr=RATE), steps=FULL_WORK, batch_size=SAMPLES, schedule=InverseClock())
    return Experiment(
        world=World(Quadratics(size.clients, level.spread), level.participation),
        model=linear,
        algorithm=Algorithm(local=local, weighting=weighting),
        task=Regression(),
        rounds=4 * size.rounds,
        runtime=InProcess(device="cpu", threads=1, precision="float64"),
    )


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    variants = {variant(v, s): experiment(v, SCHEMES[s], size) for v in LEVELS for s in SCHEMES}
    notes = [
        f"{size.clients} clients, {DIMENSION} dimensions, T = {size.rounds} rounds, nobody absent",
        "Table 1 gives rates, no numbers: O(1/τ) bounds the squared distance; D/E bounds the loss at the floor",
        "a distance is the root mean square over the last tenth of the rounds up to T or 4T",
    ]
    shrunk = f"paper scale has {SIZES['paper'].clients} clients and T = {SIZES['paper'].rounds}"
    return StudyPlan.at(scale, [Part("quadratics", variants, size.seeds)], notes, shrunk)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    T = SIZES[scale].rounds
    for level, scheme in product(LEVELS, SCHEMES):
        case = f"{level.name}, scheme {scheme}"
        rate = "→ 0 as O(1/τ)" if level is HOMOGENEOUS or scheme == "C" else "floor <= D/E"
        yield row(case, "distance at T", at(curves, level, scheme, T))
        yield row(case, "distance at 4T", at(curves, level, scheme, 4 * T), rate)


def at(curves: Curves, level: Level, scheme: str, rounds: int, factor: float = 1.0) -> dict[int, float]:
    """|w - w*| (times a factor) around a round, by seed: root mean square over the last tenth of the rounds before."""

    def distance(curve: Curve) -> float:
        mse = curve.mean(after=rounds - 1 - max(1, rounds // 10), upto=rounds - 1)
        return factor * math.sqrt(DIMENSION * mse)

    return curves.each(variant(level, scheme), distance)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    T = SIZES[scale].rounds

    def pooled(scheme: str, rounds: int, factor: float = 1.0) -> dict[int, float]:
        return mean_over([at(curves, level, scheme, rounds, factor) for level in HETEROGENEOUS])

    words, C = "heterogeneous participation", pooled("C", 4 * T)
    for s in "AB":
        yield better(f"{words}: C is nearer the optimum at 4T than {s}", pooled(s, 4 * T), C)
    yield better(f"{words}: C's distance more than halves from T to 4T", pooled("C", T, 0.5), C)
    for s in "AB":
        yield better(f"{words}: {s}'s distance does not halve from T to 4T", pooled(s, 4 * T), pooled(s, T, 0.5))
    first, last = at(curves, HOMOGENEOUS, "B", T), at(curves, HOMOGENEOUS, "B", 4 * T)
    yield better(f"{HOMOGENEOUS.name}: B has no floor, its distance goes on shrinking from T to 4T", first, last)
    for s in "AB":
        mild, strong, apart = (at(curves, level, s, 4 * T) for level in HETEROGENEOUS)
        yield better(f"{s}'s floor is higher for {STRONG.name} than for {MILD.name}", strong, mild)
        yield better(f"{s}'s floor is higher where optima are twice as far apart", apart, strong)


def figures(scale: str) -> dict[str, list[Chart]]:
    """Distance over rounds, one chart for each level."""

    def distance(mse: float) -> float:
        return math.sqrt(DIMENSION * mse)

    lines = {v.name: {f"scheme {s}": variant(v, s) for s in SCHEMES} for v in LEVELS}
    return {
        "distance.svg": [
            Chart(f"{name}: distance", own, unit="number", change=distance, log=True) for name, own in lines.items()
        ]
    }


STUDY = Study("bias", __doc__, "global_mse", plan, rows, claims, figures)
