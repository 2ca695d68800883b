"""One parameter at a time: the coordinate median and the trimmed mean (Yin et al., ICML 2018), by weight.

Shape letters: r replies with a weight, P shared parameters, p a block of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.parts.robust.votes import ROUNDING, Robust, Votes, by_rank, check_share


def coordinate_median(update_rP: Tensor, weight_r: Tensor) -> Tensor:
    """The weighted median of every column; halfway between two values where both qualify.

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
    """The weighted mean of every column without the `share` of the weight at either end; a reply at the edge counts
    with the rest of its weight.

    >>> trimmed_mean(torch.tensor([[-50.0], [1.0], [2.0], [3.0], [90.0]]), torch.ones(5), 0.2)
    tensor([2.])
    """
    total = float(weight_r.sum())

    def kept(value_pr: Tensor, own_pr: Tensor) -> Tensor:
        reached_pr = own_pr.cumsum(1)
        from_pr = (reached_pr - own_pr).clamp(min=share * total)
        kept_pr = reached_pr.clamp(max=(1 - share) * total) - from_pr
        kept_pr = torch.where(kept_pr > ROUNDING * total, kept_pr, 0.0)  # rounding times 1e30 would be large
        return ((kept_pr * value_pr).sum(1) / kept_pr.sum(1)).to(value_pr.dtype)

    return by_rank(update_rP, weight_r.double(), kept)


@dataclass(frozen=True)
class CoordinateMedian(Robust):
    """med_c(D_c)_j for every parameter j (Yin et al. 2018, Algorithm 1, option I), by weight.

    Breakdown point 1/2: with less than half of the weight hostile, every parameter stays between the smallest and the
    largest honest value. Where clients' data differ it is not their mean, even without attackers.
    """

    by_parameter: ClassVar[bool] = True

    def centre(self, votes: Votes, replies: int) -> Tensor:
        return coordinate_median(votes.update_rP, votes.weight_r)


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """(1 / (1 − 2β)m) Σ of what remains of (D_c)_j, c = 1..m, without the βm largest and the βm smallest (Yin et al.
    2018, Algorithm 1, option II), by weight; `share` is β.

    Breakdown point β: with at most that share of the weight hostile, every parameter stays between the smallest and the
    largest honest value; with more it is unbounded. β = 0 is the weighted mean.
    """

    share: float = 0.2

    by_parameter: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share("TrimmedMean", self.share)

    def centre(self, votes: Votes, replies: int) -> Tensor:
        return trimmed_mean(votes.update_rP, votes.weight_r, self.share)


KINDS = {"coordinate-median": CoordinateMedian, "trimmed-mean": TrimmedMean}
