"""Pieces of a row: neighbouring columns that are searched together, and how many of them are sent.

Shape letters: S pieces (tensors, or the whole row).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from turnout.errors import UserError, nearest
from turnout.layout import Slot

SCOPES = ("tensor", "model")
_GOLDEN = (math.sqrt(5) + 1) / 2


@dataclass(frozen=True)
class Piece:
    """The `size` columns from `start` on, of which the `keep` largest are sent."""

    start: int
    size: int
    keep: int

    @property
    def golomb(self) -> int:
        """Bits of a gap's remainder: b* = 1 + floor(log2(log(φ - 1) / log(1 - q))), q the share really kept.

        >>> Piece(0, 10_000, 100).golomb, Piece(0, 10, 1).golomb, Piece(0, 10, 10).golomb
        (6, 3, 0)
        """
        q = self.keep / self.size
        if q >= _GOLDEN - 1:
            return 0
        return max(0, 1 + math.floor(math.log2(math.log(_GOLDEN - 1) / math.log(1 - q))))


def kept_of(size: int, keep: float) -> int:
    """k = max(⌈n q⌉, 1); a product that is whole except for rounding is not rounded up.

    >>> kept_of(30, 0.1), kept_of(31, 0.1), kept_of(5, 0.01)
    (3, 4, 1)
    """
    return min(size, max(1, math.ceil(size * keep - 1e-9)))


@lru_cache(maxsize=64)
def pieces_of(slots: tuple[Slot, ...], keep: float, scope: str) -> tuple[Piece, ...]:
    """The pieces of a row: its tensors, or all of it as one."""
    if scope == "tensor":
        return tuple(Piece(s.start, s.size, kept_of(s.size, keep)) for s in slots if s.size)
    size = sum(s.size for s in slots)
    return (Piece(0, size, kept_of(size, keep)),) if size else ()


def check_keep(where: str, keep: float, scope: str) -> None:
    """Refuse a share outside (0, 1] or an unknown scope."""
    if not 0 < keep <= 1:
        raise UserError(f"{where} is a share above 0 and at most 1, not {keep}; to send everything use dense")
    if scope not in SCOPES:
        raise UserError(f"algorithm.compression.scope is {scope!r}: {nearest(scope, SCOPES)}")
