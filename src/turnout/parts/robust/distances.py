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
from turnout.parts.robust.votes import ROUNDING, Votes, centred, check_share, lengths, summed_over_columns, votes
from turnout.parts.updates import Updates

SETTLED = 1e-7  # a smaller relative gain ends Weiszfeld's steps


def geometric_median(update_rP: Tensor, weight_r: Tensor, steps: int = 16, smoothing: float = 1e-6) -> Tensor:
    """Weiszfeld's steps: z ← T(z) = Σ β_c D_c / Σ β_c with β_c = α_c / ‖z − D_c‖.

    They begin at the coordinate median: from the mean, one far update would cost dozens of them. That may be one of the
    updates, which divides by 0. The sums are then over the others, which pull with r = ‖T(z) − z‖ Σ β_c, and the step
    is shortened to z + (1 − η / r) (T(z) − z), η = Σ α_c of the updates at z (nearer than ν); where r <= η, z is the
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
class GeometricMedian:
    """argmin_z Σ α_c ‖z − D_c‖, α_c the weights: RFA (Pillutla, Kakade, Harchaoui, IEEE TSP 2022, Algorithm 2).

    steps      of Weiszfeld's algorithm, at most; the paper finds three enough, from the mean
    smoothing  ν: an update nearer than this is at z, and is not divided by its distance

    Breakdown point 1/2: with a share a < 1/2 of the weight hostile it is no further than 2 (1 − a) / (1 − 2a) times the
    largest honest length from the origin.
    """

    steps: int = 16
    smoothing: float = 1e-6
    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "updates"

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.smoothing > 0:
            raise UserError(
                f"GeometricMedian needs steps >= 1 and smoothing > 0, not {self.steps} and {self.smoothing}"
            )

    def combine(self, arrived: Updates, weight_R: Tensor) -> Tensor:
        steps, smoothing = self.steps, self.smoothing
        return centred(arrived, weight_R, lambda v: geometric_median(v.update_rP, v.weight_r, steps, smoothing))


def squared_distances(update_rP: Tensor) -> Tensor:
    """‖D_i − D_j‖² of every two rows, in double precision."""
    inner_rr = summed_over_columns(update_rP, lambda block_rp: block_rp @ block_rp.T)
    own_r = inner_rr.diagonal()
    return (own_r[:, None] + own_r[None] - 2 * inner_rr).clamp(min=0)


def krum_scores(square_rr: Tensor, vote_r: Tensor, neighbours: int) -> Tensor:
    """The sum of each reply's squared distances to the nearest votes of others, so many of them.

    A reply has `vote_r` votes, one each where all weigh the same. Its own further votes are at distance 0, so what a
    stand-in lends counts like a second reply that says the same.

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


def ranked(found: Votes, hostile: int) -> Tensor:
    """The replies by Krum's score, best first; equal scores by client."""
    vote_r = found.weight_r * found.replies / found.total
    score_r = krum_scores(squared_distances(found.update_rP), vote_r, max(1, found.replies - hostile - 2)).cpu()
    unit = float(score_r.median()) or float(score_r.mean()) or 1.0
    level_r = (score_r / (ROUNDING * unit)).round()  # equal but for rounding: equal
    by_client_r = found.client_r.cpu().argsort()
    return by_client_r[level_r[by_client_r].argsort(stable=True)]


def hostile_of(share: float, replies: int) -> int:
    """f: so many of the replies may be hostile."""
    return math.ceil(share * replies - ROUNDING)


def of_chosen(found: Votes, rows_k: Tensor, replies: int) -> Combined:
    """The mean of some replies by weight, of the size of the weighted sum of all; the others leave no trace."""
    weight_k = found.weight_r[rows_k]
    mean_P = (weight_k / weight_k.sum()).to(found.update_rP) @ found.update_rP[rows_k]
    used_R = torch.zeros(replies, dtype=torch.bool).index_fill(0, found.row_r[rows_k.cpu()].cpu(), True)
    return Combined(found.sized(mean_P), used_R, {"left_out": float(replies - len(rows_k))})


@dataclass(frozen=True)
class Krum:
    """The one update with the smallest Σ ‖D_i − D_j‖² over its m − f − 2 nearest others j (Blanchard et al., NeurIPS
    2017), m the replies; `share` is f / m.

    Breakdown point: f replies where m ≥ 2f + 3, so just below 1/2. A weight is votes: a stand-in's reply has those of
    the clients it stands for. Replies that are not chosen leave no trace: their clients keep what they had.
    """

    share: float = 0.2
    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "replies"

    def __post_init__(self) -> None:
        check_share("Krum", self.share)

    def combine(self, arrived: Updates, weight_R: Tensor) -> Tensor | Combined:
        found = votes(arrived, weight_R)
        if found is None:
            return torch.zeros_like(arrived.start_P)
        best_r = ranked(found, hostile_of(self.share, found.replies))
        return of_chosen(found, best_r[:1].to(found.weight_r.device), len(weight_R))


@dataclass(frozen=True)
class MultiKrum:
    """The mean, by weight, of the k updates with Krum's smallest scores (Blanchard et al. 2017, §4).

    share  f / m, as for Krum
    keep   k / m, the part of the replies that is kept; by default m − f of them

    Breakdown point as Krum's, f of m ≥ 2f + 3, where k <= m − f.
    """

    share: float = 0.2
    keep: float | None = None
    linear: ClassVar[bool] = False
    guards: ClassVar[str] = "replies"

    def __post_init__(self) -> None:
        check_share("MultiKrum", self.share)
        if self.keep is not None and not 0 < self.keep <= 1:
            raise UserError(
                f"MultiKrum(keep={self.keep!r}): the part of the replies that is kept is above 0, at most 1"
            )

    def combine(self, arrived: Updates, weight_R: Tensor) -> Tensor | Combined:
        found = votes(arrived, weight_R)
        if found is None:
            return torch.zeros_like(arrived.start_P)
        hostile = hostile_of(self.share, found.replies)
        kept = found.replies - hostile if self.keep is None else round(self.keep * found.replies)
        rows_k = ranked(found, hostile)[: max(1, kept)].sort().values
        return of_chosen(found, rows_k.to(found.weight_r.device), len(weight_R))


KINDS = {"geometric-median": GeometricMedian, "krum": Krum, "multi-krum": MultiKrum}
