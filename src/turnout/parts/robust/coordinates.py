"""One parameter at a time: the coordinate median and the trimmed mean (Yin et al., ICML 2018), by weight.

Shape letters: r replies with a weight, P shared parameters, p a block of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.parts.arrived import Arrived
from turnout.parts.robust.votes import ROUNDING, by_columns, centred, check_share


def coordinate_median(update_rP: Tensor, weight_r: Tensor) -> Tensor:
    """For every column the value with half of the weight on either side; halfway between two where both have that.

    >>> coordinate_median(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1.0, 1.0, 1.0]))
    tensor([2.])
    >>> coordinate_median(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1.0, 1.0, 2.0]))
    tensor([5.5000])
    """
    half = weight_r.sum() / 2

    def of(block_rp: Tensor) -> Tensor:
        value_rp, order_rp = block_rp.sort(0)
        reached_rp = weight_r[order_rp].cumsum(0)
        low = (reached_rp >= half * (1 - ROUNDING)).to(torch.int8).argmax(0, keepdim=True)
        high = (reached_rp > half * (1 + ROUNDING)).to(torch.int8).argmax(0, keepdim=True)
        return ((value_rp.gather(0, low) + value_rp.gather(0, high)) / 2).squeeze(0)

    return by_columns(update_rP, of)


def trimmed_mean(update_rP: Tensor, weight_r: Tensor, share: float) -> Tensor:
    """For every column the mean by weight without the `share` of the weight with the smallest values, and without that
    with the largest; a reply at the edge counts with the rest of its weight.

    >>> trimmed_mean(torch.tensor([[-50.0], [1.0], [2.0], [3.0], [90.0]]), torch.ones(5), 0.2)
    tensor([2.])
    """
    total = float(weight_r.sum())

    def of(block_rp: Tensor) -> Tensor:
        value_rp, order_rp = block_rp.sort(0)
        own_rp = weight_r.double()[order_rp]
        reached_rp = own_rp.cumsum(0)
        from_rp = (reached_rp - own_rp).clamp(min=share * total)
        kept_rp = reached_rp.clamp(max=(1 - share) * total) - from_rp
        kept_rp = torch.where(kept_rp > ROUNDING * total, kept_rp, 0.0)  # a last bit of 1e30 would be a lot
        return ((kept_rp * value_rp).sum(0) / kept_rp.sum(0)).to(block_rp.dtype)

    return by_columns(update_rP, of)


@dataclass(frozen=True)
class CoordinateMedian:
    """med_c(D_c)_j for every parameter j (Yin et al. 2018, Algorithm 1, option I), by weight.

    Breakdown point 1/2: with less than half of the weight hostile, every parameter stays between the smallest and the
    largest honest value. Where clients' data differ it is not their mean, also without attackers.
    """

    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "updates"
    by_parameter: ClassVar[bool] = True

    def combine(self, arrived: Arrived, weight_R: Tensor) -> Tensor:
        return centred(arrived, weight_R, lambda votes: coordinate_median(votes.update_rP, votes.weight_r))


@dataclass(frozen=True)
class TrimmedMean:
    """(1 / (1 − 2β)m) Σ of what remains of (D_c)_j, c = 1..m, without the βm largest and the βm smallest (Yin et al.
    2018, Algorithm 1, option II), by weight; `share` is β.

    Breakdown point β: with at most that share of the weight hostile, every parameter stays between the smallest and the
    largest honest value; with more it goes anywhere. β = 0 is the weighted mean.
    """

    share: float = 0.2
    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "updates"
    by_parameter: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share("TrimmedMean", self.share)

    def combine(self, arrived: Arrived, weight_R: Tensor) -> Tensor:
        return centred(arrived, weight_R, lambda votes: trimmed_mean(votes.update_rP, votes.weight_r, self.share))


KINDS = {"coordinate-median": CoordinateMedian, "trimmed-mean": TrimmedMean}
