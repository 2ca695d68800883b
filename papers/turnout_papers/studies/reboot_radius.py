"""Flexible participation, eq. (7) and Figure 2: how near the old optimum an extra update for a new device helps.

Corollary 4.0.2: a device l arrives after τ0 rounds. One more step along -∇F_l(w) moves the model nearer to the new
optimum w~* if ∇F_l(w)·(w - w~*) > 0. Eq. (7) gives a sphere around the old optimum w* inside of which it must. On
quadratics every quantity of (7) is known, and so is the true sphere: along a direction u the product is a quadratic in
|w - w*|, whose smallest positive root is where the extra update stops helping.

W bounds gradients and Hessians "for any w", which no quadratic allows; here it bounds them within the sphere itself, so
that (7) is an equation for the radius: r (|∇| + λ r) = the right side without W.

Shape letters: C clients, S samples of a client, D dimensions, U directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from turnout import SGD, Algorithm, Experiment, Local, Run, World
from turnout.rng import rng
from turnout.settings import InProcess
from turnout.tasks import Regression
from turnout_papers.studies.bias import FULL_WORK, SAMPLES, Quadratics, linear, optimum
from turnout_papers.studies.claims import BySeed, Claim, better
from turnout_papers.studies.study import Curves, Look, Part, ResultRow, Study, StudyPlan, row

DIRECTIONS, RATE = 1000, 0.02
SPREADS = {"near": 0.3, "far": 1.0}  # of the clients' optima, the arriving one's included
WORDS = {
    "distance": "distance to the old optimum",
    "helps": "the extra update helps the model, % of the seeds",
    "elsewhere": "helps models at that distance, % of the directions",
}


@dataclass(frozen=True)
class RadiusSize:
    """How large the study is: `clients`, the arriving one included, and the `rounds` τ0 after which it arrives."""

    clients: int
    rounds: tuple[int, ...]
    seeds: int


SIZES = {
    "smoke": RadiusSize(6, (1, 3), 2),
    "small": RadiusSize(20, (1, 3, 10, 30), 10),
    "paper": RadiusSize(100, (1, 3, 10, 30, 100), 30),
}


@dataclass(frozen=True)
class Arrival:
    """Everything that (7) is made of, for one set of problems.

    hessian_CDD   of each client's loss
    optimum_CD    of each client alone
    old_D, new_D  the optima before and after the arrival
    """

    hessian_CDD: Tensor
    optimum_CD: Tensor
    old_D: Tensor
    new_D: Tensor

    @classmethod
    def of(cls, x_CSD: Tensor, y_CS: Tensor) -> Arrival:
        x_CSD, y_CS = x_CSD.double(), y_CS.double()
        hessian_CDD = 2 * torch.einsum("csd,cse->cde", x_CSD, x_CSD) / x_CSD.shape[1]
        optimum_CD = torch.stack([optimum(x[None], y[None]) for x, y in zip(x_CSD, y_CS, strict=True)])
        return cls(hessian_CDD, optimum_CD, optimum(x_CSD[:-1], y_CS[:-1]), optimum(x_CSD, y_CS))

    def loss(self, w_D: Tensor) -> Tensor:
        """F_k(w) of every client: its minimum is 0."""
        off_CD = w_D - self.optimum_CD
        return torch.einsum("cd,cde,ce->c", off_CD, self.hessian_CDD, off_CD) / 2

    def radius(self) -> float:
        """Of the sphere of (7); W is the largest gradient and Hessian of any client within it."""
        eigenvalues_CD = torch.linalg.eigvalsh(self.hessian_CDD)
        smooth, convex, share = float(eigenvalues_CD.max()), float(eigenvalues_CD.min()), 1 / len(self.hessian_CDD)
        gain = float(self.loss(self.old_D).mean() - self.loss(self.new_D).mean())
        apart = float(self.loss(self.old_D)[-1])  # Γ_l
        bound = gain / ((2 * math.sqrt(2 * smooth) / convex * share * math.sqrt(apart) + 1) * share)
        slope_C = torch.einsum("cde,ce->cd", self.hessian_CDD, self.old_D - self.optimum_CD).norm(dim=1)
        steep = float(slope_C.max())
        within = (math.sqrt(steep**2 + 4 * smooth * bound) - steep) / (2 * smooth)  # r (steep + smooth r) = bound
        return min(within, bound / smooth)

    def helps(self, w_UD: Tensor) -> float:
        """For which share of these models some step along -∇F_l(w) leads nearer to the new optimum."""
        gradient_UD = (w_UD - self.optimum_CD[-1]) @ self.hessian_CDD[-1]
        return float(((gradient_UD * (w_UD - self.new_D)).sum(1) > 0).double().mean())

    def reach(self, direction_UD: Tensor) -> float:
        """How far from the old optimum it helps in all these directions: ∇F_l(w)·(w - w~*) = a r² + b r + c there."""
        slope_D = self.hessian_CDD[-1] @ (self.old_D - self.optimum_CD[-1])
        curved_UD = direction_UD @ self.hessian_CDD[-1]
        c = float(slope_D @ (self.old_D - self.new_D))
        if c <= 0:
            return 0.0
        a_U = (curved_UD * direction_UD).sum(1)
        b_U = curved_UD @ (self.old_D - self.new_D) + direction_UD @ slope_D
        inside_U = b_U**2 - 4 * a_U * c
        root_U = (-b_U - inside_U.clamp(min=0).sqrt()) / (2 * a_U)
        return float(torch.where((inside_U >= 0) & (root_U > 0), root_U, math.inf).min())


def variant(spread: str, after: int) -> str:
    return f"{spread} optima, after {after} rounds"


def experiment(spread: str, after: int, clients: int) -> Experiment:
    """All clients but the arriving one, full-batch steps at a constant rate."""
    return Experiment(
        world=World(Quadratics(clients, SPREADS[spread], absent=1)),
        model=linear,
        algorithm=Algorithm(local=Local(SGD(lr=RATE), steps=FULL_WORK, batch_size=SAMPLES)),
        task=Regression(),
        rounds=after,
        runtime=InProcess(device="cpu", threads=1, precision="float64"),
    )


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    variants = {variant(s, after): experiment(s, after, size.clients) for s in SPREADS for after in size.rounds}
    notes = [
        f"{size.clients} clients of which the last has not arrived; the paper gives (7) and no numbers",
        "W bounds gradients and Hessians within the sphere (no quadratic has bounded gradients everywhere)",
        f"the true radius is the smallest over {DIRECTIONS} random directions, so it is known from above",
    ]
    return StudyPlan([Part("quadratics", variants, size.seeds)], notes)


def look(run: Run) -> Look:
    data = run.experiment.world.data
    assert isinstance(data, Quadratics)
    seed = run.experiment.seed
    arrival = Arrival.of(*data.problems(seed))
    w_D = next(run.model().parameters()).detach().double().flatten()
    direction_UD = torch.randn(DIRECTIONS, len(w_D), generator=rng(seed, "directions"), dtype=torch.float64)
    direction_UD /= direction_UD.norm(dim=1, keepdim=True)
    distance = float((w_D - arrival.old_D).norm())
    found = {
        "distance": distance,
        "radius": arrival.radius(),
        "reach": arrival.reach(direction_UD),
        "helps": 100 * arrival.helps(w_D[None]),
        "elsewhere": 100 * arrival.helps(arrival.old_D + distance * direction_UD),
    }
    return {name: np.array([value]) for name, value in found.items()}


def seen(curves: Curves, spread: str, after: int, what: str) -> BySeed:
    return curves.seen(variant(spread, after), lambda look: float(look[what][0]))


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for spread in SPREADS:
        first, *_ = rounds = SIZES[scale].rounds
        yield row(f"{spread} optima", "radius of (7)", seen(curves, spread, first, "radius"))
        yield row(f"{spread} optima", "true radius", seen(curves, spread, first, "reach"))
        for after, (what, words) in product(rounds, WORDS.items()):
            yield row(variant(spread, after), words, seen(curves, spread, after, what))


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    rounds = SIZES[scale].rounds
    for spread in SPREADS:
        reach, radius = (seen(curves, spread, rounds[0], what) for what in ("reach", "radius"))
        yield better(f"{spread} optima: the extra update helps everywhere in the sphere of (7)", reach, radius)
        late, early = (seen(curves, spread, after, "elsewhere") for after in (rounds[-1], rounds[0]))
        claim = f"{spread} optima: it helps more models at the distance of a late arrival than of an early one"
        yield better(claim, late, early)
    far, near = (seen(curves, spread, rounds[0], "radius") for spread in ("far", "near"))
    yield better("the sphere of (7) is larger where the arriving data differs more", far, near)


STUDY = Study("reboot-radius", __doc__, "global_mse", plan, rows, claims, look=look)
