"""The draw of stratified dropout: keep an exact number of a cohort, spread over its groups.

Shape letters: C clients of the cohort, G groups, B attempts of a block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turnout.rng import uniform


def keep_in_groups(client_C: Tensor, group_C: Tensor, present: int, t: int, seed: int) -> Tensor:
    """Which clients are present: exactly `present`, and at least one of each group if there are enough places."""
    _, group_C, size_G = torch.unique(group_C, return_inverse=True, return_counts=True)
    keep_G = divide(size_G, present, t, seed)
    order_C = (group_C + uniform(seed, "stratified", t, ids=client_C)).argsort()  # by group, random inside
    sorted_group_C = group_C[order_C]
    rank_C = torch.arange(len(client_C)) - (size_G.cumsum(0) - size_G)[sorted_group_C]
    stays_C = torch.zeros(len(client_C), dtype=torch.bool)
    stays_C[order_C] = rank_C < keep_G[sorted_group_C]
    return stays_C


def divide(size_G: Tensor, places: int, t: int, seed: int) -> Tensor:
    """How many of each group are present: 1 <= count <= size with sum `places`, every such list equally likely.

    >>> divide(torch.tensor([4, 4, 4, 4, 4]), places=5, t=0, seed=0)
    tensor([1, 1, 1, 1, 1])
    >>> int(divide(torch.tensor([4, 4, 4, 4, 4]), places=14, t=0, seed=0).sum())
    14
    """
    groups = len(size_G)
    if places < groups:
        lucky_G = uniform(seed, "strata", t, ids=torch.arange(groups)).argsort().argsort()
        return (lucky_G < places).to(torch.int64)
    most_G = size_G - 1
    extra, room = places - groups, int(most_G.sum())
    if 2 * extra > room:  # fewer to leave out than to keep: draw those to leave out
        return size_G - _compose(most_G, room - extra, t, seed)
    return 1 + _compose(most_G, extra, t, seed)


def _compose(most_G: Tensor, total: int, t: int, seed: int) -> Tensor:
    """Uniformly random counts in 0..most with this sum, for a total of at most half the sum of `most`.

    Rejection sampling, as in the authors' code, but with better proposals. All groups but the largest draw from
    P(n) ~ exp(tilt n), with the tilt that gives the total on average; the largest takes the rest r, if it fits. A list
    is then proposed with probability ~ exp(tilt (total - r)), so accepting it with probability exp(tilt r) makes all
    lists equally likely.
    """
    if total == 0 or len(most_G) == 1:
        return torch.full_like(most_G, total)
    largest = int(most_G.argmax())
    tilt = _tilt(most_G, total)
    span_G = torch.expm1(tilt * (most_G + 1).double())
    attempts, block = min(256, 8 + 60_000 // len(most_G)), 0
    while True:
        ids = torch.arange(attempts * len(most_G))
        u_BG = uniform(seed, "strata", t, block, ids=ids).view(attempts, -1)
        count_BG = (torch.log1p(u_BG * span_G) / tilt).to(torch.int64).minimum(most_G)
        rest_B = total - count_BG.sum(1) + count_BG[:, largest]
        fits_B = (rest_B >= 0) & (rest_B <= most_G[largest])
        taken_B = fits_B & (u_BG[:, largest] < torch.exp(tilt * rest_B.double()))
        if taken_B.any():
            first = int(taken_B.to(torch.int8).argmax())
            count_BG[first, largest] = rest_B[first]
            return count_BG[first]
        block += 1


def _tilt(most_G: Tensor, total: int) -> float:
    """The tilt < 0 at which counts with P(n) ~ exp(tilt n) on 0..most add up to `total` on average, by bisection."""
    size_K, groups_K = (most_G + 1).unique(return_counts=True)
    sizes = list(zip(size_K.tolist(), groups_K.tolist(), strict=True))
    low, high = -60.0, -1e-6
    for _ in range(40):
        tilt = (low + high) / 2
        each = 1 / math.expm1(-tilt)
        mean = sum(k * (each - n / math.expm1(min(-tilt * n, 700.0))) for n, k in sizes)
        low, high = (tilt, high) if mean < total else (low, tilt)
    return high
