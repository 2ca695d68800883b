"""The only source of randomness: draws are addressed, not consumed.

A draw belongs to an address such as (seed, "batches", round, client), so it can be repeated in any order, on any
machine, for any chunk of clients. `rng` gives an ordinary generator; `uniform` and `keys` give one number per id for a
whole vector of ids at once, without a Python loop and without touching ids that were not asked for.

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
    """A fresh generator for an address."""
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
