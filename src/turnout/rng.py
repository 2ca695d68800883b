"""The only source of randomness: draws are addressed, not consumed.

A draw belongs to an address such as (seed, "batches", round, client), so it can be repeated in any order, on any
machine, for any chunk of clients.

Shape letters: I ids.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64: the increment of splitmix64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def key(seed: int, *address: int | str) -> int:
    """A 64-bit number for an address, the same on every machine.

    >>> key(0, "batches", 3) == key(0, "batches", 3), key(0, "batches", 3) == key(0, "batches", 4)
    (True, False)
    """
    digest = hashlib.blake2b(repr((seed, *address)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def rng_seed(seed: int, *address: int | str) -> int:
    """What the generator of an address is seeded with."""
    return key(seed, *address) & (2**63 - 1)


def rng(seed: int, *address: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(rng_seed(seed, *address))


def mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64 tensors: a bijection that scrambles every bit."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def keys(base: int | Tensor, ids: Tensor) -> Tensor:
    """One 64-bit key per id under a base key (a number, or a tensor that broadcasts against the ids)."""
    return mix(ids.to(torch.int64) * _GOLDEN + base)


def unit(keys_I: Tensor) -> Tensor:
    """Keys as numbers in [0, 1), float64."""
    return ((keys_I >> 11) & 0x1FFFFFFFFFFFFF).to(torch.float64) * 2.0**-53


def uniform(seed: int, *address: int | str, ids: Tensor) -> Tensor:
    """One number in [0, 1) per id; an id's number does not depend on which others are asked.

    >>> both = uniform(0, "dropout", 7, ids=torch.tensor([5, 9]))
    >>> bool(both[1] == uniform(0, "dropout", 7, ids=torch.tensor([9]))[0])
    True
    """
    return unit(keys(key(seed, *address), ids))


def draw(count: int, among: int, t: int, seed: int, purpose: str = "cohort") -> Tensor:
    """`count` of the positions 0..among-1, uniformly without replacement, sorted.

    Repeats are thrown away; when more than half are wanted, those to leave out are drawn instead.

    >>> draw(3, among=1_000_000, t=0, seed=0).unique().shape, draw(4, among=4, t=0, seed=0)
    (torch.Size([3]), tensor([0, 1, 2, 3]))
    """
    if count > among // 2:
        keep_I = torch.ones(among, dtype=torch.bool)
        if count < among:
            keep_I[draw(among - count, among, t, seed, purpose)] = False
        return keep_I.nonzero().squeeze(1)
    chosen_C, draws = torch.empty(0, dtype=torch.int64), 2 * count + 16
    while len(chosen_C) < count:
        value_D = (uniform(seed, purpose, t, ids=torch.arange(draws)) * among).to(torch.int64)
        sorted_D, place_D = value_D.sort(stable=True)
        new_D = torch.ones_like(sorted_D, dtype=torch.bool)
        new_D[1:] = sorted_D[1:] != sorted_D[:-1]
        chosen_C = value_D[place_D[new_D].sort().values[:count]]  # the first different ones, in order of appearance
        draws *= 2
    return chosen_C.sort().values
