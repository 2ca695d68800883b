"""Whole updates, by how far they are from one another: geometric median (RFA), Krum and multi-Krum.

Shape letters: R replies, r those with a weight, P shared parameters, p a block of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.aggregation import Combined
from turnout.parts.robust.coordinates import coordinate_median
from turnout.parts.robust.votes import BLOCK, ROUNDING, Robust, Votes, check_share, lengths

SETTLED = 1e-7  # a smaller relative gain ends Weiszfeld's steps


def geometric_median(update_rP: Tensor, weight_r: Tensor, steps: int = 16, smoothing: float = 1e-6) -> Tensor:
    """Weiszfeld's steps: z ← T(z) = Σ β_c D_c / Σ β_c with β_c = α_c / ‖z − D_c‖.

    They start at the coordinate median: from the mean, one far update would cost dozens of steps. Where z is one of the
    updates, which would divide by 0, the sums are over the others, with pull r = ‖T(z) − z‖ Σ β_c, and the step is
    shortened to z + (1 − η / r) (T(z) − z), η = Σ α_c of the updates at z (nearer than ν); where r <= η, z is the
    median (Vardi and Zhang, PNAS 2000).

    >>> four = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [1.0, -1e6]])
    >>> [round(abs(value), 4) for value in geometric_median(four, torch.ones(4)).tolist()]
    [1.0, 0.0]
    """
    z_P, before = coordinate_median(update_rP, weight_r), math.inf
    for _ in range(steps):
        distance_r = lengths(update_rP, z_P)
        cost, here_r = float((weight_r * distance_r).sum()), distance_r < smoothing
        if before - cost <= SETTLED * cost or bool(here_r.all()):
            break
        before, pull_r = cost, torch.where(here_r, 0.0, weight_r / distance_r)
        there_P = (pull_r / pull_r.sum()).to(update_rP) @ update_rP
        if bool(here_r.any()):
            pull = float(lengths(there_P[None], z_P) * pull_r.sum())
            part = 1 - float(weight_r[here_r].sum()) / max(pull, 1e-300)
            there_P = z_P + max(0.0, part) * (there_P - z_P)
        z_P = there_P
    return z_P


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """argmin_z Σ α_c ‖z − D_c‖, α_c the weights: RFA (Pillutla, Kakade, Harchaoui, IEEE TSP 2022, Algorithm 2).

    steps      most steps of Weiszfeld's algorithm; the paper finds three enough, from the mean
    smoothing  ν: an update nearer than this counts as being at z, and is not divided by its distance

    Breakdown point 1/2: with a share a < 1/2 of the weight hostile it is no further than 2 (1 − a) / (1 − 2a) times the
    largest honest length from the origin.
    """

    steps: int = 16
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.smoothing > 0:
            raise UserError(
                f"GeometricMedian needs steps >= 1 and smoothing > 0, not {self.steps} and {self.smoothing}"
            )

    def centre(self, votes: Votes, replies: int) -> Tensor:
        return geometric_median(votes.update_rP, votes.weight_r, self.steps, self.smoothing)


def squared_distances(update_rP: Tensor) -> Tensor:
    """‖D_i − D_j‖² of every two rows, in double precision."""
    blocks = update_rP.split(max(1, BLOCK // len(update_rP)), 1)
    inner_rr = torch.stack([(block_rp := block.double()) @ block_rp.T for block in blocks]).sum(0)
    own_r = inner_rr.diagonal()
    return (own_r[:, None] + own_r[None] - 2 * inner_rr).clamp(min=0)


def krum_scores(square_rr: Tensor, vote_r: Tensor, neighbours: int) -> Tensor:
    """The sum of each reply's squared distances to this many nearest votes of others.

    A reply has `vote_r` votes, one each where all weights are equal. Its own further votes are at distance 0, so a
    share lent to a stand-in counts like a second, equal reply.

    >>> square = squared_distances(torch.tensor([[0.0], [1.0], [3.0], [9.0]]))
    >>> krum_scores(square, torch.ones(4), 2).tolist()
    [10.0, 5.0, 13.0, 100.0]
    >>> krum_scores(square, torch.tensor([1.0, 2.0, 1.0, 0.0]), 2).tolist()
    [2.0, 1.0, 8.0, 100.0]
    """
    further_r = (vote_r.double() - 1).clamp(min=0)
    votes_rr = vote_r.double().expand_as(square_rr).diagonal_scatter(further_r)
    near_rr, order_rr = square_rr.sort(1)
    vote_rr = votes_rr.gather(1, order_rr)
    left_rr = (neighbours - (vote_rr.cumsum(1) - vote_rr)).clamp(min=0)
    return (near_rr * vote_rr.minimum(left_rr)).sum(1)


@dataclass(frozen=True)
class MultiKrum(Robust):
    """The mean, by weight, of the k updates with Krum's smallest scores (Blanchard et al. 2017, §4).

    share  f / m, as for Krum
    keep   k / m, the share of the replies that is kept; None: m − f of them

    Breakdown point as Krum's, f of m ≥ 2f + 3, where k <= m − f.
    """

    share: float = 0.2
    keep: float | None = None

    guards: ClassVar[str] = "replies"

    def __post_init__(self) -> None:
        check_share("MultiKrum", self.share)
        if self.keep is not None and not 0 < self.keep <= 1:
            raise UserError(f"MultiKrum(keep={self.keep!r}): the share of the replies to keep is above 0, at most 1")

    def centre(self, votes: Votes, replies: int) -> Combined:
        kept = votes.replies - hostile_of(self.share, votes.replies)
        if self.keep is not None:
            kept = round(self.keep * votes.replies)
        return mean_of_best(votes, self.share, max(1, kept), replies)


@dataclass(frozen=True)
class Krum(Robust):
    """The one update with the smallest Σ ‖D_i − D_j‖² over its m − f − 2 nearest others j (Blanchard et al., NeurIPS
    2017), m the replies; `share` is f / m.

    Breakdown point: f replies where m ≥ 2f + 3, so just below 1/2. Weights are votes: a stand-in's reply has those of
    the clients it stands for. Replies that are not chosen have no effect: their clients keep their state.
    """

    share: float = 0.2

    guards: ClassVar[str] = "replies"

    def __post_init__(self) -> None:
        check_share("Krum", self.share)

    def centre(self, votes: Votes, replies: int) -> Combined:
        return mean_of_best(votes, self.share, 1, replies)


def hostile_of(share: float, replies: int) -> int:
    """f: how many of the replies may be hostile."""
    return math.ceil(share * replies - ROUNDING)


def mean_of_best(votes: Votes, share: float, kept: int, replies: int) -> Combined:
    """The mean, by weight, of the replies with Krum's smallest scores (ties by client); the others are unused."""
    vote_r = votes.weight_r * votes.replies / votes.total
    nearest = max(1, votes.replies - hostile_of(share, votes.replies) - 2)
    score_r = krum_scores(squared_distances(votes.update_rP), vote_r, nearest).cpu()
    unit = float(score_r.median()) or float(score_r.mean()) or 1.0
    level_r = (score_r / (ROUNDING * unit)).round()  # equal except for rounding: equal
    by_client_r = votes.client_r.cpu().argsort()
    rows_k = by_client_r[level_r[by_client_r].argsort(stable=True)][:kept].sort().values
    used_R = torch.zeros(replies, dtype=torch.bool).index_fill(0, votes.row_r[rows_k].cpu(), True)
    rows_k = rows_k.to(votes.weight_r.device)
    weight_k = votes.weight_r[rows_k]
    mean_P = (weight_k / weight_k.sum()).to(votes.update_rP) @ votes.update_rP[rows_k]
    return Combined(mean_P, used_R, {"left_out": float(replies - len(rows_k))})


KINDS = {"geometric-median": GeometricMedian, "krum": Krum, "multi-krum": MultiKrum}
