"""The replies of a round with what each weighs, and sums over many columns in blocks.

Shape letters: R replies, r those with a weight, P shared parameters, p a block of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.errors import Mistake
from turnout.parts.arrived import Arrived

BLOCK = 1 << 22  # numbers sorted or squared at a time: both make copies
ROUNDING = 1e-9  # of all weight: less than this is no vote


@dataclass(frozen=True)
class Votes:
    """The replies that weigh something."""

    update_rP: Tensor
    weight_r: Tensor  # float64, where the updates are
    client_r: Tensor
    row_r: Tensor  # which of the replies they are

    @property
    def total(self) -> float:
        return float(self.weight_r.sum())

    @property
    def replies(self) -> int:
        return len(self.row_r)

    def sized(self, centre_P: Tensor) -> Tensor:
        """A centre of the updates, of the size of their weighted sum."""
        return self.total * centre_P.to(self.update_rP)


def votes(arrived: Arrived, weight_R: Tensor) -> Votes | None:
    """Rows with a weight; None without any."""
    row_r = (weight_R > 0).nonzero().squeeze(1)
    if not len(row_r):
        return None
    update = arrived.update_RP
    rows_rP = update if len(row_r) == len(weight_R) else update[row_r.to(update.device)]
    weight_r = weight_R[row_r].to(update.device, torch.float64)
    return Votes(rows_rP, weight_r, arrived.client_R[row_r.to(arrived.client_R.device)], row_r)


def centred(arrived: Arrived, weight_R: Tensor, centre: Callable[[Votes], Tensor]) -> Tensor:
    """Σ weight times the centre of the updates; nothing where nobody weighs anything."""
    found = votes(arrived, weight_R)
    return torch.zeros_like(arrived.start_P) if found is None else found.sized(centre(found))


def by_columns(update_rP: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of columns, some columns at a time, one after another."""
    width = max(1, BLOCK // len(update_rP))
    return torch.cat([of(block_rp) for block_rp in update_rP.split(width, 1)])


def summed_over_columns(update_rP: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """A sum over columns in double precision, some columns at a time."""
    width = max(1, BLOCK // len(update_rP))
    return torch.stack([of(block_rp.double()) for block_rp in update_rP.split(width, 1)]).sum(0)


def lengths(update_rP: Tensor, from_P: Tensor | None = None) -> Tensor:
    """The Euclidean length of each row, or its distance from a point.

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
        raise Mistake(f"{name}(share={share!r}): the share that may be hostile is from 0 to below 0.5")
