"""Checks of what clients train with: optimizers and learning-rate schedules.

Shape letters: c clients of a chunk, C of a cohort, P parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turnout.parts.optimizers import MOMENTS, Optimizer
from turnout.parts.schedules import Schedule
from turnout.testing.examples import all_finite, expect


def check_schedule(schedule: Schedule) -> None:
    """Promises of a schedule: a rate above 0 whatever the clock, the same again."""
    for clock in (0, 1, 2, 10, 1000, 10**6):
        rate = schedule.rate(0.1, clock)
        expect(math.isfinite(rate) and rate > 0, f"rate: a number above 0, not {rate!r} at clock {clock}")
        expect(rate == schedule.rate(0.1, clock), f"rate: not the same again at clock {clock}")


def check_optimizer(optimizer: Optimizer, width: int = 6) -> None:
    """Promises of a local optimizer: a chunk of clients is each alone, it stays finite, no work makes no progress, and
    what becomes of its slots is one of what there is."""
    expect(optimizer.moments in MOMENTS, f"moments: one of {', '.join(MOMENTS)}, not {optimizer.moments!r}")
    generator = torch.Generator().manual_seed(0)
    x_cP, grad_scP = torch.randn(3, width, generator=generator), torch.randn(4, 3, width, generator=generator)

    def after(rows: slice) -> list[Tensor]:
        x = x_cP[rows].clone()
        slots = {name: torch.zeros_like(x) for name in optimizer.slots}
        for step, grad_cP in enumerate(grad_scP):
            optimizer.step(x, grad_cP[rows].clone(), slots, torch.full((len(x),), step + 1), 0.1)
        return [x, *(slots[name] for name in optimizer.slots)]

    whole = after(slice(0, 3))
    expect(all_finite(*whole), "step: must stay finite")
    expect(not torch.equal(whole[0], x_cP), "step: changes the parameters in place, and here they stayed")
    for i in range(3):
        for together, alone in zip(whole, after(slice(i, i + 1)), strict=True):
            expect(torch.allclose(together[i], alone[0], atol=1e-6), f"step: client {i} depends on its company")
    progress_C = optimizer.progress(torch.tensor([0, 1, 2, 5]))
    expect(float(progress_C[0]) == 0, f"progress: 0 for no steps, not {float(progress_C[0]):g}")
    expect(bool((progress_C.diff() > 0).all()), f"progress: grows with the steps, but is {progress_C.tolist()}")
