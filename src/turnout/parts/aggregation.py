"""The server's arithmetic: a weighted sum of updates, a weighted mean of states. The step is in server.py.

Shape letters: C or R replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.machine.memory import to_device
from turnout.parts.updates import Updates
from turnout.types import Extra


def weighted_sum(update_CP: Tensor, weight_C: Tensor) -> Tensor:
    """Σ_c weight_c · update_c over the rows of weight above 0; the weights need not sum to 1.

    A zero weight does not hide a NaN, so rows of weight 0 are left out, not multiplied by 0.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [float("nan"), 0.0]]), torch.tensor([2.0, 0.0]))
    tensor([2., 4.])
    """
    used_C = weight_C != 0
    if not bool(used_C.all()):
        update_CP, weight_C = update_CP[used_C.to(update_CP.device)], weight_C[used_C]
    return to_device(weight_C, update_CP.device, update_CP.dtype) @ update_CP


def weighted_mean(value_C: Tensor, weight_C: Tensor) -> Tensor:
    """Σ_c weight_c · value_c / Σ_c weight_c: for states, which must stay in their range for any sum of the weights.

    Integers (a batch counter) are rounded. A value that is the same for all clients stays exactly as it is.

    >>> weighted_mean(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 1.0]))
    tensor([2.])
    """
    used_C = weight_C > 0
    if not bool(used_C.all()):
        value_C, weight_C = value_C[used_C.to(value_C.device)], weight_C[used_C]
    if bool((value_C == value_C[:1]).all()):
        return value_C[0].clone()
    weight_C = weight_C.to(torch.float64)
    whole = not value_C.is_floating_point()
    row_C = (value_C.to(torch.float64) if whole else value_C).reshape(len(value_C), -1)
    mean = (weight_C / weight_C.sum()).to(row_C) @ row_C  # federated moments are as large as the updates: no copy
    return (mean.round() if whole else mean).to(value_C.dtype).view(value_C.shape[1:])


@dataclass(frozen=True)
class Combined:
    """One update of several.

    update_P  the update
    used_R    mask of the replies that are in it; None: all. A reply that is not used has no effect: weight 0, its
              states and uploads are left out, and its client keeps its state of before the round
    extra     columns for the round's record
    guarded   the replies as terms and states may see them, with the same rows; None: as they were sent
    """

    update_P: Tensor
    used_R: Tensor | None = None
    extra: Extra = field(default_factory=dict)
    guarded: Updates | None = None


class Aggregation(Protocol):
    """How the replies of a round become one update."""

    @property
    def linear(self) -> bool:
        """Whether it is a sum by the weights, to which rows of earlier rounds can be added (`Stale`)."""

    def combine(self, updates: Updates, weight_R: Tensor) -> Tensor | Combined:
        """One update [P] of the replies with these weights: `WeightedSum` returns Σ weight update for any sum of the
        weights, another aggregation something of that size (Σ weight times a median, say).

        Updates are scaled by work where `linear` is false. A `Combined` names the replies that were used.
        """


@dataclass(frozen=True)
class WeightedSum:
    """Σ weight_c update_c, as in all five papers."""

    linear: ClassVar[bool] = True

    def combine(self, updates: Updates, weight_R: Tensor) -> Tensor:
        return weighted_sum(updates.update_RP, weight_R)


def combined_of(result: Tensor | Combined) -> Combined:
    """The result of an aggregation; a plain tensor means that all replies are used."""
    return Combined(result) if isinstance(result, Tensor) else result


KINDS = {"weighted-sum": WeightedSum}
