"""One parameter at a time: the coordinate median and the trimmed mean (Yin et al., ICML 2018), by weight.

Shape letters: r replies with a weight, P shared parameters, p a block of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.parts.robust.votes import ROUNDING, by_rank, centred, check_share
from turnout.parts.updates import Updates


def coordinate_median(update_rP: Tensor, weight_r: Tensor) -> Tensor:
    """For every column the value with half of the weight on either side; halfway between two where both have that.

    >>> coordinate_median(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1.0, 1.0, 1.0]))
    tensor([2.])
    >>> coordinate_median(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1.0, 1.0, 2.0]))
    tensor([5.5000])
    """
    half = weight_r.sum() / 2

    def middle(value_pr: Tensor, own_pr: Tensor) -> Tensor:
        reached_pr = own_pr.cumsum(1)
        low = (reached_pr >= half * (1 - ROUNDING)).to(torch.int8).argmax(1, keepdim=True)
        high = (reached_pr > half * (1 + ROUNDING)).to(torch.int8).argmax(1, keepdim=True)
        ends = [value_pr.gather(1, place.expand(len(value_pr), 1)) for place in (low, high)]
        return ((ends[0] + ends[1]) / 2).squeeze(1)

    return by_rank(update_rP, weight_r, middle)


def trimmed_mean(update_rP: Tensor, weight_r: Tensor, share: float) -> Tensor:
    """For every column the mean by weight without the `share` of the weight with the smallest values, and without that
    with the largest; a reply at the edge counts with the rest of its weight.

    >>> trimmed_mean(torch.tensor([[-50.0], [1.0], [2.0], [3.0], [90.0]]), torch.ones(5), 0.2)
    tensor([2.])
    """
    total = float(weight_r.sum())

    def kept(value_pr: Tensor, own_pr: Tensor) -> Tensor:
        reached_pr = own_pr.cumsum(1)
        from_pr = (reached_pr - own_pr).clamp(min=share * total)
        kept_pr = reached_pr.clamp(max=(1 - share) * total) - from_pr
        kept_pr = torch.where(kept_pr > ROUNDING * total, kept_pr, 0.0)  # a last bit of 1e30 would be a lot
        return ((kept_pr * value_pr).sum(1) / kept_pr.sum(1)).to(value_pr.dtype)

    return by_rank(update_rP, weight_r.double(), kept)


@dataclass(frozen=True)
class CoordinateMedian:
    """med_c(D_c)_j for every parameter j (Yin et al. 2018, Algorithm 1, option I), by weight.

    Breakdown point 1/2: with less than half of the weight hostile, every parameter stays between the smallest and the
    largest honest value. Where clients' data differ it is not their mean, also without attackers.
    """

    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "updates"
    by_parameter: ClassVar[bool] = True

    def combine(self, arrived: Updates, weight_R: Tensor) -> Tensor:
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

    def combine(self, arrived: Updates, weight_R: Tensor) -> Tensor:
        return centred(arrived, weight_R, lambda votes: trimmed_mean(votes.update_rP, votes.weight_r, self.share))


KINDS = {"coordinate-median": CoordinateMedian, "trimmed-mean": TrimmedMean}
