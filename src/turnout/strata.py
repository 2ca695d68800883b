"""Keeping an exact number of a cohort, spread over its groups: the draw behind stratified dropout.

Shape letters: C clients of the cohort, G groups, B attempts of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.rng import uniform

_ATTEMPTS = 256  # drawn together; about 2.5 standard deviations of the sum are needed on average


def keep_in_groups(client_C: Tensor, group_C: Tensor, present: int, t: int, seed: int) -> Tensor:
    """Which clients stay: exactly `present`, at least one of each group if there are places enough."""
    _, group_C, size_G = torch.unique(group_C, return_inverse=True, return_counts=True)
    keep_G = divide(size_G, present, t, seed)
    by_chance_C = uniform(seed, "stratified", t, ids=client_C).argsort()
    order_C = by_chance_C[group_C[by_chance_C].argsort(stable=True)]  # group after group, random inside
    start_G = size_G.cumsum(0) - size_G
    sorted_group_C = group_C[order_C]
    rank_C = torch.arange(len(client_C)) - start_G[sorted_group_C]
    stays_C = torch.zeros(len(client_C), dtype=torch.bool)
    stays_C[order_C] = rank_C < keep_G[sorted_group_C]
    return stays_C


def divide(size_G: Tensor, places: int, t: int, seed: int) -> Tensor:
    """How many of each group stay: 1 <= count <= size, with this sum, every such list equally likely.

    With fewer places than groups the counts are 0 or 1.

    >>> divide(torch.tensor([4, 4, 4, 4, 4]), places=5, t=0, seed=0)
    tensor([1, 1, 1, 1, 1])
    >>> int(divide(torch.tensor([4, 4, 4, 4, 4]), places=14, t=0, seed=0).sum())
    14
    """
    least = 1 if places >= len(size_G) else 0
    most_G = size_G - 1 if least else torch.ones_like(size_G)
    extra, room = places - least * len(size_G), int(most_G.sum())
    if 2 * extra > room:  # fewer to leave out than to keep: draw those
        return least + most_G - _compose(most_G, room - extra, t, seed)
    return least + _compose(most_G, extra, t, seed)


def _compose(most_G: Tensor, total: int, t: int, seed: int) -> Tensor:
    """Counts in 0..most with this sum, uniformly, for a total of at most half the room.

    Rejection, as in the authors' code, but from counts with P(n) ~ exp(tilt n): given their sum all lists are
    equally likely whatever the tilt, and with the right one the sum is met within a few attempts.
    """
    if total == 0:
        return torch.zeros_like(most_G)
    tilt = _tilt(most_G, total)
    span_G = torch.expm1(tilt * (most_G + 1).double())
    block = 0
    while True:
        ids = torch.arange(_ATTEMPTS * len(most_G))
        u_BG = uniform(seed, "strata", t, block, ids=ids).view(_ATTEMPTS, -1)
        count_BG = (torch.log1p(u_BG * span_G) / tilt).to(torch.int64).minimum(most_G)
        hit_B = count_BG.sum(1) == total
        if hit_B.any():
            return count_BG[int(hit_B.to(torch.int8).argmax())]
        block += 1


def _tilt(most_G: Tensor, total: int) -> float:
    """The tilt (below 0) at which counts with P(n) ~ exp(tilt n) on 0..most add up to `total` on average."""
    low, high = -60.0, -1e-6
    for _ in range(50):
        middle = (low + high) / 2
        width_G = (most_G + 1).double()
        mean_G = 1 / torch.expm1(torch.tensor(-middle).double()) - width_G / torch.expm1(-middle * width_G)
        low, high = (middle, high) if float(mean_G.sum()) < total else (low, middle)
    return (low + high) / 2
