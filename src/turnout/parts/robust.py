"""Aggregations that a hostile minority cannot steer: the result stays near most replies.

One parameter at a time: coordinate median and trimmed mean (Yin et al., ICML 2018). Whole updates, by how far they are
from one another: geometric median (RFA), Krum and multi-Krum. Updates cut to a length: norm clipping and centred
clipping.

A reply's weight is its votes: its share, the shares lent to it by a substitution, a boost. The result has the size of
the weighted sum: Σ weight times the centre, so a missing share keeps the old model where the weighting wants that. A
breakdown point is the share of the *weight of the replies* that may be hostile; with few replies that share is soon
reached, and a client that overstates its samples has more of it (`Shares(by="uniform")` gives every client one vote).

The same rule holds for all that goes beside an update: BatchNorm statistics, moments, shared personal layers, uploads
of terms. Krum chooses whole replies, judged by everything in them. The others give each of these tensors a centre of
its own, and terms and states see that centre in the row of every client, also instead of its update.

Shape letters: R replies, r those of weight above 0, k those of them that are kept, P shared parameters, p a block of
them, X the numbers of any tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError, check_settings
from turnout.parts.aggregation import Aggregation, Combined, combined_of
from turnout.parts.updates import Updates
from turnout.rng import rng

BLOCK = 1 << 22  # numbers sorted or squared at a time: both make copies
SORTED = 1 << 19  # the same on a CPU, where they fit into its cache
ROUNDING = 1e-9  # of all weight: less than this is not a vote
SETTLED = 1e-7  # a smaller relative gain ends Weiszfeld's steps
HOSTILE = "[0, 0.5)"  # a share that may be hostile


@dataclass(frozen=True)
class Votes:
    """The replies of weight above 0.

    update_rP  their updates
    weight_r   their weights, float64, on the device of the updates
    client_r   their clients
    row_r      their rows among all replies
    address    seed and round, for what is drawn
    beside     what else they sent, [r, X] each
    """

    update_rP: Tensor
    weight_r: Tensor
    client_r: Tensor
    row_r: Tensor
    address: tuple[int, int]
    beside: tuple[Tensor, ...] = ()

    @property
    def total(self) -> float:
        return float(self.weight_r.sum())


class Robust(ABC):
    """An aggregation that a hostile minority cannot steer. The result is Σ weight times the centre of the updates."""

    linear: ClassVar[bool] = False

    def combine(self, updates: Updates, weight_R: Tensor) -> Tensor | Combined:
        row_r = (weight_R > 0).nonzero().squeeze(1)
        if not len(row_r):
            return torch.zeros_like(updates.start_P)

        def rows(value: Tensor) -> Tensor:
            value = value if len(row_r) == len(weight_R) else value[row_r.to(value.device)]
            return (value if value.is_floating_point() else value.double()).reshape(len(row_r), -1)

        def centred(value: Tensor) -> Tensor:
            """The centre, as the row of every client."""
            if not value.numel():
                return value
            these = replace(votes, update_rP=rows(value), weight_r=votes.weight_r.to(value.device))
            middle = combined_of(self.beside.centre(these, len(weight_R))).update_P
            middle = middle if value.is_floating_point() else middle.round()
            return middle.to(value.dtype).view(value.shape[1:]).expand_as(value)

        sent = [value for tensors in (updates.states, *updates.uploads.values()) for value in tensors.values()]
        weight_r = weight_R[row_r].to(updates.update_RP.device, torch.float64)
        client_r = updates.client_R[row_r.to(updates.client_R.device)]
        beside = tuple(rows(value) for value in sent if value.numel())
        votes = Votes(rows(updates.update_RP), weight_r, client_r, row_r, (updates.seed, updates.t), beside)
        combined, guarded = combined_of(self.centre(votes, len(weight_R))), None
        centre_P = combined.update_P.to(updates.update_RP)
        if combined.used_R is None:
            guarded = replace(updates.beside(centred), update_RP=centre_P.expand_as(updates.update_RP))
        return Combined(votes.total * centre_P, combined.used_R, combined.extra, guarded)

    @property
    def beside(self) -> Robust:
        """The rule for what goes beside the updates, whose lengths are not those of updates."""
        return self

    @abstractmethod
    def centre(self, votes: Votes, replies: int) -> Tensor | Combined:
        """The centre of the updates [P]; with a `Combined` also which of all replies were used, and columns. A rule
        that chooses replies judges them by all that is in `votes`."""


# -- one parameter at a time


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


def by_rank(update_rP: Tensor, weight_r: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply a function of each column's sorted values and their weights, some columns at a time.

    Where all weights are equal they are one row for all columns, and only the values are sorted. numpy's sort is
    vectorised, torch's on a CPU is not.
    """
    alike, on_cpu = bool((weight_r == weight_r[0]).all()), update_rP.device.type == "cpu"
    with_numpy = on_cpu and update_rP.dtype in (torch.float32, torch.float64)
    columns = []
    for block_rp in update_rP.split(max(1, (SORTED if on_cpu else BLOCK) // len(update_rP)), 1):
        block_pr = block_rp.T.contiguous()
        if alike:
            sorted_pr = torch.from_numpy(np.sort(block_pr.numpy(), 1)) if with_numpy else block_pr.sort(1)[0]
            columns.append(of(sorted_pr, weight_r[None]))
        else:
            order_pr = torch.from_numpy(np.argsort(block_pr.numpy(), 1)) if with_numpy else block_pr.argsort(1)
            columns.append(of(block_pr.gather(1, order_pr), weight_r[order_pr]))
    return torch.cat(columns)


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
        check_settings(self, share=HOSTILE)

    def centre(self, votes: Votes, replies: int) -> Tensor:
        return trimmed_mean(votes.update_rP, votes.weight_r, self.share)


# -- whole updates, by distance


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
        check_settings(self, steps="[1, inf)", smoothing="(0, inf)")

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
class Krum(Robust):
    """The one update with the smallest Σ ‖D_i − D_j‖² over its m − f − 2 nearest others j (Blanchard et al., NeurIPS
    2017), m the replies; `share` is f / m.

    Breakdown point: f replies where m ≥ 2f + 3, so just below 1/2. Weights are votes: a stand-in's reply has those of
    the clients it stands for. Replies that are not chosen have no effect: their clients keep their state. Statistics,
    moments and uploads have a score each; the largest counts, each as a multiple of the median reply's.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        check_settings(self, share=HOSTILE)

    def kept(self, replies: int, hostile: int) -> int:
        """How many of the replies are used."""
        return 1

    def centre(self, votes: Votes, replies: int) -> Combined:
        """The mean, by weight, of the replies with the smallest scores (ties by client); the others are unused."""
        counted = len(votes.row_r)
        hostile = math.ceil(self.share * counted - ROUNDING)
        vote_r = votes.weight_r * counted / votes.total
        level_r = torch.zeros(counted, dtype=torch.float64)
        for sent_rX in (votes.update_rP, *votes.beside):
            near = max(1, counted - hostile - 2)
            score_r = krum_scores(squared_distances(sent_rX), vote_r.to(sent_rX.device), near).cpu()
            unit = float(score_r.median()) or float(score_r.mean()) or 1.0
            level_r = level_r.maximum((score_r / (ROUNDING * unit)).round())  # equal except for rounding: equal
        by_client_r = votes.client_r.cpu().argsort()
        best_r = by_client_r[level_r[by_client_r].argsort(stable=True)]
        rows_k = best_r[: max(1, self.kept(counted, hostile))].sort().values
        used_R = torch.zeros(replies, dtype=torch.bool).index_fill(0, votes.row_r[rows_k].cpu(), True)
        rows_k = rows_k.to(votes.weight_r.device)
        weight_k = votes.weight_r[rows_k]
        mean_P = (weight_k / weight_k.sum()).to(votes.update_rP) @ votes.update_rP[rows_k]
        return Combined(mean_P, used_R, {"left_out": float(replies - len(rows_k))})


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean, by weight, of the k updates with Krum's smallest scores (Blanchard et al. 2017, §4).

    share  f / m, as for Krum
    keep   k / m, the share of the replies that is kept; None: m − f of them

    Breakdown point as Krum's, f of m ≥ 2f + 3, where k <= m − f.
    """

    keep: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, share=HOSTILE, keep="(0, 1]")

    def kept(self, replies: int, hostile: int) -> int:
        return replies - hostile if self.keep is None else round(self.keep * replies)


# -- updates mixed with their neighbours


def mixed(update_rP: Tensor, weight_r: Tensor, share: float) -> Tensor:
    """Each row becomes the mean, by weight, of the rows nearest to it that have 1 − share of all weight; itself first.

    >>> mixed(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), torch.ones(4).double(), 0.25).squeeze(1).tolist()
    [1.0, 1.0, 1.0, 31.0]
    """
    order_rr = squared_distances(update_rP).fill_diagonal_(-1.0).argsort(stable=True)
    own_rr = weight_r[order_rr]
    left_rr = ((1 - share) * weight_r.sum() - (own_rr.cumsum(1) - own_rr)).clamp(min=0)
    part_rr = torch.zeros_like(own_rr).scatter(1, order_rr, own_rr.minimum(left_rr))
    return (part_rr / part_rr.sum(1, keepdim=True)).to(update_rP) @ update_rP


def in_buckets(votes: Votes, size: int) -> Votes:
    """Votes of buckets: means, by weight, of so many replies at a time, drawn anew in each round."""
    count, home = -(-len(votes.client_r) // size), votes.weight_r.device
    place_r = torch.randperm(len(votes.client_r), generator=rng(*votes.address, "buckets")) // size
    bucket_r = torch.empty_like(place_r).index_copy(0, votes.client_r.cpu().argsort(), place_r).to(home)
    part_br = torch.zeros(count, len(place_r), dtype=torch.float64, device=home)
    part_br[bucket_r, torch.arange(len(place_r), device=home)] = votes.weight_r
    weight_b = part_br.sum(1)
    update_bP = (part_br / weight_b[:, None]).to(votes.update_rP) @ votes.update_rP
    return replace(votes, update_rP=update_bP, weight_r=weight_b, client_r=torch.arange(count), beside=())


@dataclass(frozen=True)
class NearestMixing(Robust):
    """A rule applied to means of neighbours: D_i <- mean of the m − f updates nearest to D_i, of m replies (Allouah et
    al., AISTATS 2023, NNM), where a reply is first the mean of a bucket of them (Karimireddy, He, Jaggi, ICLR 2022).

    rule    the aggregation of the means, such as CoordinateMedian
    share   the hostile share it is set for: f / m without buckets; one hostile client spoils a bucket, so that f / m is
            `bucket` times as much, at most 0.49
    bucket  replies in a bucket; 1: none

    For clients whose data differ: buckets are more alike than clients, and means of neighbours still more, so that
    without attackers the rule is near the mean of all. Weights are votes.
    """

    rule: Aggregation = field(default_factory=CoordinateMedian)
    share: float = 0.2
    bucket: int = 2

    def __post_init__(self) -> None:
        check_settings(self, share=HOSTILE, bucket="[1, inf)")
        if not isinstance(self.rule, Robust):
            raise UserError(f"NearestMixing(rule={type(self.rule).__name__}): a robust rule, such as CoordinateMedian")

    def centre(self, votes: Votes, replies: int) -> Combined:
        assert isinstance(self.rule, Robust)
        votes = in_buckets(votes, self.bucket)
        near_bP = mixed(votes.update_rP, votes.weight_r, min(self.bucket * self.share, 0.49))
        combined = combined_of(self.rule.centre(replace(votes, update_rP=near_bP), replies))
        return replace(combined, used_R=None)


# -- updates cut to a length


def clipped_mean(votes: Votes, limit: float | None, centre_P: Tensor | None = None) -> tuple[Tensor, int]:
    """v + Σ α_c (D_c − v) min(1, τ / ‖D_c − v‖) with α_c = weight / Σ weight, and how many were cut."""
    length_r = lengths(votes.update_rP, centre_P)
    most = coordinate_median(length_r[:, None], votes.weight_r) if limit is None else length_r.new_tensor(limit)
    factor_r = (most / length_r.clamp(min=1e-300)).clamp(max=1.0)
    part_r = factor_r * votes.weight_r / votes.total
    mean_P = part_r.to(votes.update_rP) @ votes.update_rP
    if centre_P is not None:
        mean_P = mean_P + (1 - part_r.sum()).to(centre_P) * centre_P
    return mean_P, int((factor_r < 1 - 1e-12).sum())


@dataclass(frozen=True)
class NormClip(Robust):
    """Σ weight_c D_c min(1, M / ‖D_c‖) (Sun et al. 2019): no client moves the model further than its share of M.

    limit  M; None: the median length of the round's updates, by weight, so that half of the replies are cut

    It bounds the effect of a minority and does not undo it: a share a of the weight moves the model by at most a M, in
    any direction. With a number for M that holds for every a (no breakdown); the median length breaks down at 1/2.
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, limit="(0, inf]")

    @property
    def beside(self) -> Robust:
        """Statistics are not near 0, so that clipping their length would spoil them."""
        return CoordinateMedian()

    def centre(self, votes: Votes, replies: int) -> Combined:
        mean_P, cut = clipped_mean(votes, self.limit)
        return Combined(mean_P, extra={"clipped": float(cut)})


@dataclass(frozen=True)
class CentredClip(Robust):
    """v ← v + Σ α_c (D_c − v) min(1, τ / ‖D_c − v‖), a few times (Karimireddy, He, Jaggi 2021, Algorithm 2).

    limit  τ; None: the median distance from v, by weight
    steps  how often

    The paper starts at the last round's v and needs momentum for it; here v starts at the round's coordinate median,
    because the cohort changes from round to round. Breakdown point 1/2 (of the start and of the median distance); each
    step adds at most τ times the hostile share.
    """

    limit: float | None = None
    steps: int = 3

    def __post_init__(self) -> None:
        check_settings(self, limit="(0, inf]", steps="[1, inf)")

    @property
    def beside(self) -> Robust:
        return replace(self, limit=None)

    def centre(self, votes: Votes, replies: int) -> Combined:
        v_P, cut = coordinate_median(votes.update_rP, votes.weight_r), 0
        for _ in range(self.steps):
            v_P, cut = clipped_mean(votes, self.limit, v_P)
        return Combined(v_P, extra={"clipped": float(cut)})


KINDS = {
    "coordinate-median": CoordinateMedian, "trimmed-mean": TrimmedMean, "geometric-median": GeometricMedian,
    "krum": Krum, "multi-krum": MultiKrum, "norm-clip": NormClip, "centred-clip": CentredClip,
    "nearest-mixing": NearestMixing,
}  # fmt: skip
