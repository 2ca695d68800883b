"""The k largest entries of each tensor of a row: exactly k, ties by lowest index, vectorised over rows.

Shape letters: C rows (clients), P columns, S pieces (tensors, or the whole row), K entries picked of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from turnout.engine.layout import Slot
from turnout.errors import Mistake, nearest

SCOPES = ("tensor", "model")
_GOLDEN = (math.sqrt(5) + 1) / 2


@dataclass(frozen=True)
class Piece:
    """Neighbouring columns of which the `keep` largest are sent."""

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
    """k = max(⌈n q⌉, 1); a product that is whole but for rounding is not rounded up.

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
    """Refuse a share or a scope that means nothing."""
    if not 0 < keep <= 1:
        raise Mistake(f"{where} is a share above 0 and at most 1, not {keep}; to send everything use dense")
    if scope not in SCOPES:
        raise Mistake(f"algorithm.compression.scope is {scope!r}: {nearest(scope, SCOPES)}")


@dataclass(frozen=True)
class Picked:
    """Entries of each row, piece after piece, columns rising; where a piece has fewer than k entries that are not 0,
    the last ones of the piece are not there (their column is any)."""

    column_CK: Tensor
    there_CK: Tensor

    def of(self, x_CP: Tensor) -> Tensor:
        """The picked entries of rows, 0 where there is none."""
        return torch.where(self.there_CK, x_CP.gather(1, self.column_CK), 0)

    def dense(self, value_CK: Tensor, width: int) -> Tensor:
        """Whole rows again: these values at these columns, 0 elsewhere."""
        return value_CK.new_zeros(len(value_CK), width).scatter_add_(1, self.column_CK, value_CK * self.there_CK)


def largest(x_CP: Tensor, pieces: Sequence[Piece]) -> Picked:
    """The entries of largest size of every piece, ties by lowest index; an entry that is 0 is never picked.

    >>> picked = largest(torch.tensor([[1.0, -3.0, 3.0, 0.0, 0.0]]), [Piece(0, 3, 1), Piece(3, 2, 1)])
    >>> picked.column_CK[picked.there_CK], picked.there_CK
    (tensor([1]), tensor([[ True, False]]))
    """
    found = []
    for piece in pieces:
        size_Cn = x_CP[:, piece.start : piece.start + piece.size].abs()
        index_Ck, there_Ck = _top(size_Cn, piece.keep)
        # Twice the column, so that what is not there goes behind the rest of its piece but before the next one.
        behind = 2 * (piece.start + piece.size) - 1
        found.append(torch.where(there_Ck, 2 * (piece.start + index_Ck), behind))
    if not found:
        none_C0 = torch.empty(len(x_CP), 0, dtype=torch.int64, device=x_CP.device)
        return Picked(none_C0, none_C0.bool())
    order_CK = torch.cat(found, 1).sort(1).values
    return Picked(order_CK // 2, order_CK % 2 == 0)


def _top(size_Cn: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    value_Ck, index_Ck = size_Cn.topk(keep, sorted=False)
    least_C1 = value_Ck.amin(1, keepdim=True)
    # Of equals `topk` takes any: where some were left out, sort those rows, which leaves equals in their order.
    tied_C = ((size_Cn >= least_C1).sum(1) > keep) & (least_C1[:, 0] > 0)
    row_T = tied_C.nonzero().squeeze(1)
    if len(row_T):
        index_Ck[row_T] = size_Cn[row_T].sort(dim=1, descending=True, stable=True).indices[:, :keep]
    return index_Ck, value_Ck != 0
