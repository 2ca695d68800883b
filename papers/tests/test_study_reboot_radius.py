"""Study `reboot-radius` against sums over samples and steps that are really taken."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from turnout.rng import rng
from turnout_papers.studies import reboot_radius
from turnout_papers.studies.bias import Quadratics
from turnout_papers.studies.reboot_radius import Arrival
from turnout_papers.studies.running import run_study

X_CSD, Y_CS = (part.double() for part in Quadratics(clients=5).problems(seed=3))
ARRIVAL = Arrival.of(X_CSD, Y_CS)


def loss(w_D: Tensor, clients: slice) -> Tensor:
    return ((X_CSD[clients] @ w_D - Y_CS[clients]) ** 2).mean()


def gradient(w_D: Tensor, clients: slice) -> Tensor:
    w_D = w_D.clone().requires_grad_()
    return torch.autograd.grad(loss(w_D, clients), w_D)[0]


def test_optima_and_losses_are_those_of_the_samples() -> None:
    for w_D, clients in ((ARRIVAL.old_D, slice(0, 4)), (ARRIVAL.new_D, slice(0, 5))):
        assert gradient(w_D, clients).norm() < 1e-10
    w_D = torch.linspace(-2, 2, 10, dtype=torch.float64)
    torch.testing.assert_close(ARRIVAL.loss(w_D), torch.stack([loss(w_D, slice(c, c + 1)) for c in range(5)]))


def test_the_extra_update_helps_where_a_small_step_leads_nearer() -> None:
    direction_UD = torch.randn(5000, 10, generator=rng(0, "directions"), dtype=torch.float64)
    direction_UD /= direction_UD.norm(dim=1, keepdim=True)
    reach = ARRIVAL.reach(direction_UD)
    for factor in (0.5, 0.99, 1.01):
        w_UD = ARRIVAL.old_D + factor * reach * direction_UD
        gradient_UD = 2 / X_CSD.shape[1] * (w_UD @ X_CSD[4].T - Y_CS[4]) @ X_CSD[4]
        after_UD = w_UD - 1e-6 * gradient_UD
        nearer_U = (after_UD - ARRIVAL.new_D).norm(dim=1) < (w_UD - ARRIVAL.new_D).norm(dim=1)
        assert ARRIVAL.helps(w_UD) == float(nearer_U.double().mean())
        assert bool(nearer_U.all()) == (factor < 1)


def test_the_radius_is_equation_7_with_its_own_sphere_as_the_bound_on_gradients() -> None:
    radius, share = ARRIVAL.radius(), 1 / 5
    eigen_CD = torch.linalg.eigvalsh(2 * X_CSD.mT @ X_CSD / X_CSD.shape[1])
    smooth, convex = float(eigen_CD.max()), float(eigen_CD.min())
    gain = float(loss(ARRIVAL.old_D, slice(0, 5)) - loss(ARRIVAL.new_D, slice(0, 5)))
    apart = float(loss(ARRIVAL.old_D, slice(4, 5)))
    steepest = max(float(gradient(ARRIVAL.old_D, slice(c, c + 1)).norm()) for c in range(5)) + smooth * radius
    factor = (2 * math.sqrt(2 * smooth) / convex * share * math.sqrt(apart) + 1) * share
    assert math.isclose(radius, gain / (factor * max(steepest, smooth)), rel_tol=1e-9)


def test_the_study_end_to_end(tmp_path: Path) -> None:
    found = run_study(reboot_radius.STUDY, "smoke", tmp_path / "out", quiet=True)
    assert len(found.claims) == 5
