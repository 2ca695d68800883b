"""The k largest entries of each tensor of a row: exactly k, ties by lowest index, vectorised over rows.

Shape letters: C rows (clients), b some of them, P columns, S pieces (tensors, or the whole row), K entries of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from turnout.machine.compiler import at, function, pointer, whole
from turnout.parts.compression.codec import picks_kernel
from turnout.parts.compression.codec.pieces import Piece

_CACHE = 1 << 23  # bytes of rows searched together on a CPU, so that temporary tensors stay in the cache
SOURCE = Path(__file__).with_name("largest.c")
ARGUMENTS = (pointer, whole, whole, pointer, whole, whole, pointer, pointer)
NUMBERS = {
    torch.float32: ("REAL=float", "BITS=uint32_t", "TOP=20"),
    torch.float64: ("REAL=double", "BITS=uint64_t", "TOP=49"),
}


@dataclass(frozen=True)
class Picked:
    """Entries of each row, piece after piece, columns rising.

    column_CK  their columns
    there_CK   False for the last entries of a piece that has fewer than k which are not 0 (their column is arbitrary)
    """

    column_CK: Tensor
    there_CK: Tensor

    def of(self, x_CP: Tensor) -> Tensor:
        """The picked entries of rows, 0 where one is not there."""
        return torch.where(self.there_CK, x_CP.gather(1, self.column_CK), 0)

    def dense(self, value_CK: Tensor, width: int) -> Tensor:
        """Whole rows: these values at these columns, 0 elsewhere."""
        return value_CK.new_zeros(len(value_CK), width).scatter_add_(1, self.column_CK, value_CK * self.there_CK)


def largest(x_CP: Tensor, pieces: Sequence[Piece]) -> Picked:
    """The entries of largest size of every piece, ties by lowest index; an entry that is 0 is never picked.

    >>> picked = largest(torch.tensor([[1.0, -3.0, 3.0, 0.0, 0.0]]), [Piece(0, 3, 1), Piece(3, 2, 1)])
    >>> picked.column_CK[picked.there_CK], picked.there_CK
    (tensor([1]), tensor([[ True, False]]))
    """
    if not pieces or not len(x_CP):
        none_CK = torch.empty(len(x_CP), sum(p.keep for p in pieces), dtype=torch.int64, device=x_CP.device)
        return Picked(none_CK, none_CK.bool())
    if picks_kernel.fits(x_CP, pieces):
        return largest_with_kernels(x_CP, pieces)
    in_c = x_CP.device.type == "cpu" and x_CP.dtype in NUMBERS and x_CP.stride(1) == 1
    pick = function(SOURCE, "largest", ARGUMENTS, NUMBERS[x_CP.dtype]) if in_c else None
    if pick is None:
        return largest_with_torch(x_CP, pieces)
    entries = sum(piece.keep for piece in pieces)
    column_CK = torch.empty(len(x_CP), entries, dtype=torch.int64)
    there_CK = torch.empty(len(x_CP), entries, dtype=torch.bool)
    table = torch.tensor([(piece.start, piece.size, piece.keep) for piece in pieces])
    if pick(at(x_CP), len(x_CP), x_CP.stride(0), at(table), len(pieces), entries, at(column_CK), at(there_CK)):
        raise MemoryError
    return Picked(column_CK, there_CK)


def largest_with_kernels(x_CP: Tensor, pieces: Sequence[Piece]) -> Picked:
    """The same in float32 on a GPU, without waiting for it."""
    chosen = picks_kernel.choose(x_CP, pieces)
    there_CK = chosen.there(picks_kernel.tables(tuple(pieces), x_CP.device))
    return Picked(torch.where(there_CK, chosen.column_CK, 0).long(), there_CK)


def largest_with_torch(x_CP: Tensor, pieces: Sequence[Piece]) -> Picked:
    """The same in float64 on a GPU, or without a compiler."""
    step = len(x_CP) if x_CP.device.type == "cuda" else max(1, _CACHE // (x_CP.shape[1] * x_CP.element_size()))
    order_CK = torch.cat([_order(x_bP, pieces) for x_bP in x_CP.split(step)])
    return Picked(order_CK // 2, order_CK % 2 == 0)


def _order(x_bP: Tensor, pieces: Sequence[Piece]) -> Tensor:
    """Twice the picked columns, rising; an odd number behind its piece stands for an entry that is not there."""
    size_bP, at = x_bP.abs(), _places(tuple(pieces), x_bP.device)
    sizes = [size_bP[:, piece.start : piece.start + piece.size] for piece in pieces]
    tops = [size_bn.topk(min(p.keep + 1, p.size)) for size_bn, p in zip(sizes, pieces, strict=True)]
    value_bT, index_bT = (torch.cat(found, 1) for found in zip(*tops, strict=True))
    next_bS = value_bT.index_select(1, at.next_S)
    tied_bS = (next_bS == value_bT.index_select(1, at.last_S)) & (next_bS > at.least_S)
    tied = tied_bS.any(0).tolist()  # one wait for the GPU
    value_bK, index_bK = value_bT.index_select(1, at.kept_K), index_bT.index_select(1, at.kept_K)
    first = 0
    for i, piece in enumerate(pieces):  # of equals `topk` takes any, while a sort leaves them in order
        if tied[i]:
            row_t = tied_bS[:, i].nonzero().squeeze(1)
            in_order_tn = sizes[i][row_t].sort(dim=1, descending=True, stable=True).indices
            index_bK[row_t, first : first + piece.keep] = in_order_tn[:, : piece.keep]
        first += piece.keep
    return torch.where(value_bK != 0, at.twice_K + 2 * index_bK, at.behind_K).sort(1).values


@dataclass(frozen=True)
class _Places:
    """Positions among the largest entries of all pieces, side by side, with one more of each than is kept (T)."""

    kept_K: Tensor
    last_S: Tensor  # the last that is kept
    next_S: Tensor  # the one after it, or itself
    least_S: Tensor  # it counts only above this; infinity where there is no next one
    twice_K: Tensor  # twice the piece's first column
    behind_K: Tensor


@lru_cache(maxsize=64)
def _places(pieces: tuple[Piece, ...], device: torch.device) -> _Places:
    kept: list[int] = []
    last, twice, behind, start = [], [], [], 0
    for p in pieces:
        kept += range(start, start + p.keep)
        last.append(start + p.keep - 1)
        twice += [2 * p.start] * p.keep
        behind += [2 * (p.start + p.size) - 1] * p.keep
        start += min(p.keep + 1, p.size)
    more = [p.keep < p.size for p in pieces]
    least = [0.0 if is_more else math.inf for is_more in more]
    columns = (kept, last, [here + is_more for here, is_more in zip(last, more, strict=True)], least, twice, behind)
    return _Places(*(torch.tensor(column, device=device) for column in columns))
