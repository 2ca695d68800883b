"""The replies of a round with their weights as votes, the base of robust aggregations, and sums over columns in blocks.

Shape letters: R replies, r those of weight above 0, P shared parameters, p a block of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.aggregation import Combined
from turnout.parts.updates import Updates

BLOCK = 1 << 22  # numbers sorted or squared at a time: both make copies
SORTED = 1 << 19  # the same on a CPU, where they fit into its cache
ROUNDING = 1e-9  # of all weight: less than this is not a vote


@dataclass(frozen=True)
class Votes:
    """The replies of weight above 0.

    update_rP  their updates
    weight_r   their weights, float64, on the device of the updates
    client_r   their clients
    row_r      their rows among all replies
    """

    update_rP: Tensor
    weight_r: Tensor
    client_r: Tensor
    row_r: Tensor

    @property
    def total(self) -> float:
        return float(self.weight_r.sum())

    @property
    def replies(self) -> int:
        return len(self.row_r)


class Robust(ABC):
    """An aggregation that a hostile minority cannot steer. The result is Σ weight times the centre of the updates.

    guards  what is protected from hostile clients: "updates", or whole "replies" (those not chosen have no effect)
    """

    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "updates"

    def combine(self, updates: Updates, weight_R: Tensor) -> Tensor | Combined:
        row_r = (weight_R > 0).nonzero().squeeze(1)
        if not len(row_r):
            return torch.zeros_like(updates.start_P)
        update = updates.update_RP
        rows_rP = update if len(row_r) == len(weight_R) else update[row_r.to(update.device)]
        weight_r = weight_R[row_r].to(update.device, torch.float64)
        votes = Votes(rows_rP, weight_r, updates.client_R[row_r.to(updates.client_R.device)], row_r)
        found = self.centre(votes, len(weight_R))
        if isinstance(found, Tensor):
            return votes.total * found.to(rows_rP)
        return Combined(votes.total * found.update_P.to(rows_rP), found.used_R, found.extra)

    @abstractmethod
    def centre(self, votes: Votes, replies: int) -> Tensor | Combined:
        """The centre of the updates [P]; with a `Combined` also which of all replies were used, and columns."""


def by_rank(update_rP: Tensor, weight_r: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply a function of each column's sorted values and their weights, some columns at a time.

    Where all weights are equal they are one row for all columns, and only the values are sorted.
    """
    alike = bool((weight_r == weight_r[0]).all())
    numbers = SORTED if update_rP.device.type == "cpu" else BLOCK
    found = []
    for block_rp in update_rP.split(max(1, numbers // len(update_rP)), 1):
        block_pr = block_rp.T.contiguous()
        if alike:
            found.append(of(sort(block_pr), weight_r[None]))
        else:
            order_pr = argsort(block_pr)
            found.append(of(block_pr.gather(1, order_pr), weight_r[order_pr]))
    return torch.cat(found)


def sort(value_pr: Tensor) -> Tensor:
    """The values of each row, rising; numpy's sort is vectorised, torch's on a CPU is not.

    >>> sort(torch.tensor([[3.0, -1.0, 2.0]]))
    tensor([[-1.,  2.,  3.]])
    """
    return torch.from_numpy(np.sort(value_pr.numpy(), 1)) if _for_numpy(value_pr) else value_pr.sort(1)[0]


def argsort(value_pr: Tensor) -> Tensor:
    """The positions of the values of each row, rising.

    >>> argsort(torch.tensor([[3.0, -1.0, 2.0]]))
    tensor([[1, 2, 0]])
    """
    return torch.from_numpy(np.argsort(value_pr.numpy(), 1)) if _for_numpy(value_pr) else value_pr.argsort(1)


def _for_numpy(value_pr: Tensor) -> bool:
    return value_pr.device.type == "cpu" and value_pr.dtype in (torch.float32, torch.float64)


def lengths(update_rP: Tensor, from_P: Tensor | None = None) -> Tensor:
    """The Euclidean length of each row, or its distance from a point, in double precision.

    >>> lengths(torch.tensor([[3.0, 4.0]])), lengths(torch.tensor([[3.0, 4.0]]), torch.tensor([3.0, 3.0]))
    (tensor([5.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    width = max(1, BLOCK // len(update_rP))
    square_r = torch.zeros(len(update_rP), dtype=torch.float64, device=update_rP.device)
    for i, block_rp in enumerate(update_rP.split(width, 1)):
        block_rp = block_rp.double()
        if from_P is not None:
            block_rp = block_rp - from_P[i * width : (i + 1) * width]
        square_r += block_rp.square().sum(1)
    return square_r.sqrt()


def check_share(name: str, share: float) -> None:
    if not 0 <= share < 0.5:
        raise UserError(f"{name}(share={share!r}): the share that may be hostile is from 0 to below 0.5")
