"""Local training of one client in a round: optimizer, amount of work, batch size, learning-rate schedule.

Shape letters: c clients of a chunk, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from turnout.errors import UserError, check_part, check_settings
from turnout.parts.optimizers import MOMENTS, SGD, Optimizer
from turnout.parts.schedules import Constant, Schedule
from turnout.types import Turnout


@dataclass(frozen=True)
class Local:
    """Local training.

    optimizer   of the local steps
    epochs      most passes over a client's data in a round (1 if neither `epochs` nor `steps` is given)
    steps       most mini-batches in a round, instead of `epochs`
    batch_size  samples of a mini-batch
    schedule    learning rate by the clock
    clip        the most that the gradient of a mini-batch may be long (its Euclidean norm, over all parameters, before
                terms are added); None: as long as it is
    accumulate  parts into which a mini-batch is divided whose gradients are computed one after another and summed: the
                same step with less memory; None: one
    """

    optimizer: Optimizer = field(default_factory=SGD)
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 20
    schedule: Schedule = field(default_factory=Constant)
    clip: float | None = None
    accumulate: int | None = None

    def __post_init__(self) -> None:
        check_part("algorithm.local.optimizer", self.optimizer, Optimizer, "SGD(lr=0.1)")
        check_part("algorithm.local.schedule", self.schedule, Schedule, "InverseClock()")
        check_settings(self.optimizer, moments=MOMENTS)
        if self.epochs is not None and self.steps is not None:
            raise UserError("local work is asked for both in epochs and in steps: give algorithm.local one of the two")
        check_settings(self, epochs="[1, inf)", steps="[1, inf)", batch_size="[1, inf)")
        check_settings(self, clip="(0, inf)", accumulate="[1, inf)")
        if (self.accumulate or 1) > self.batch_size:
            raise UserError(
                f"algorithm.local.accumulate = {self.accumulate} divides a mini-batch of {self.batch_size} samples: "
                "raise batch_size (the samples of a whole step), or lower it"
            )

    @cached_property
    def full_work(self) -> int:
        """E: the units of work asked for (one epoch by default)."""
        if self.steps is not None:
            return self.steps
        return 1 if self.epochs is None else self.epochs

    @property
    def at_once(self) -> int:
        """The most samples of a client that pass through the model together."""
        return -(-self.batch_size // (self.accumulate or 1))

    def full_steps(self, examples_C: Tensor, drop_single: bool) -> Tensor:
        """Complete work of clients with these numbers of samples, in mini-batches."""
        per_epoch_C = steps_per_epoch(examples_C, self.batch_size, drop_single)
        if self.steps is not None:
            return torch.where(per_epoch_C > 0, self.steps, 0)
        return per_epoch_C * self.full_work


def steps_per_epoch(count_C: Tensor, batch_size: int, drop_single: bool) -> Tensor:
    """Mini-batches of one pass; a last batch of one sample is dropped where batch statistics need two.

    >>> steps_per_epoch(torch.tensor([40, 41, 1]), 20, drop_single=True)
    tensor([2, 2, 0])
    """
    full = count_C // batch_size
    rest = count_C % batch_size
    return full + (rest > (1 if drop_single else 0)).long()


def turn_out(
    client_C: Tensor, fraction_C: Tensor, examples_C: Tensor, local: Local, drop_single: bool
) -> tuple[Turnout, Tensor]:
    """The turnout of fractions of the work, and the fractions as whole mini-batches.

    A fraction is rounded down to whole mini-batches; less than one is an absence.
    """
    full_C = local.full_steps(examples_C, drop_single)
    if bool((fraction_C == 1).all()):
        return turnout_of(client_C, full_C, full_C, local), full_C
    steps_C = (fraction_C * full_C + 1e-6).floor().long().clamp(max=full_C)
    return turnout_of(client_C, steps_C, full_C, local), steps_C


def turnout_of(client_C: Tensor, steps_C: Tensor, full_C: Tensor, local: Local) -> Turnout:
    """The turnout of `steps_C` of `full_C` mini-batches."""
    work_C = torch.where(steps_C > 0, steps_C.double() / full_C.clamp(min=1) * local.full_work, 0.0)
    progress_C = full_progress_C = local.optimizer.progress(full_C)
    if steps_C is not full_C:
        progress_C = local.optimizer.progress(steps_C)
    return Turnout(client_C, work_C, local.full_work, progress_C, full_progress_C)
