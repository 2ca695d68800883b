"""The replies of a round with what each weighs, and sums over many columns in blocks.

Shape letters: R replies, r those with a weight, P shared parameters, p a block of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.updates import Updates

BLOCK = 1 << 22  # numbers sorted or squared at a time: both make copies
SORTED = 1 << 19  # on a CPU: so many fit into its cache
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


def votes(arrived: Updates, weight_R: Tensor) -> Votes | None:
    """Rows with a weight; None without any."""
    row_r = (weight_R > 0).nonzero().squeeze(1)
    if not len(row_r):
        return None
    update = arrived.update_RP
    rows_rP = update if len(row_r) == len(weight_R) else update[row_r.to(update.device)]
    weight_r = weight_R[row_r].to(update.device, torch.float64)
    return Votes(rows_rP, weight_r, arrived.client_R[row_r.to(arrived.client_R.device)], row_r)


def centred(arrived: Updates, weight_R: Tensor, centre: Callable[[Votes], Tensor]) -> Tensor:
    """Σ weight times the centre of the updates; nothing where nobody weighs anything."""
    found = votes(arrived, weight_R)
    return torch.zeros_like(arrived.start_P) if found is None else found.sized(centre(found))


def by_rank(update_rP: Tensor, weight_r: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A function of each column's values in order and of what each of them weighs, some columns at a time.

    Where all weigh the same the weights are one row for all columns, and nobody need know whose value is where.
    """
    alike = bool((weight_r == weight_r[0]).all())
    numbers = SORTED if update_rP.device.type == "cpu" else BLOCK
    found = []
    for block_rp in update_rP.split(max(1, numbers // len(update_rP)), 1):
        block_pr = block_rp.T.contiguous()
        if alike:
            found.append(of(in_order(block_pr), weight_r[None]))
        else:
            order_pr = order_of(block_pr)
            found.append(of(block_pr.gather(1, order_pr), weight_r[order_pr]))
    return torch.cat(found)


def in_order(value_pr: Tensor) -> Tensor:
    """The values of each row from the smallest on; numpy's sort takes vectors at a time, torch's on a CPU does not.

    >>> in_order(torch.tensor([[3.0, -1.0, 2.0]]))
    tensor([[-1.,  2.,  3.]])
    """
    return torch.from_numpy(np.sort(value_pr.numpy(), 1)) if _for_numpy(value_pr) else value_pr.sort(1)[0]


def order_of(value_pr: Tensor) -> Tensor:
    """Where the values of each row are, from the smallest on.

    >>> order_of(torch.tensor([[3.0, -1.0, 2.0]]))
    tensor([[1, 2, 0]])
    """
    return torch.from_numpy(np.argsort(value_pr.numpy(), 1)) if _for_numpy(value_pr) else value_pr.argsort(1)


def _for_numpy(value_pr: Tensor) -> bool:
    return value_pr.device.type == "cpu" and value_pr.dtype in (torch.float32, torch.float64)


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
        raise UserError(f"{name}(share={share!r}): the share that may be hostile is from 0 to below 0.5")
