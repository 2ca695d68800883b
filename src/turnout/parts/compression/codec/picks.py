"""The k largest entries of each tensor of a row: exactly k, ties by lowest index, vectorised over rows.

Shape letters: C rows (clients), P columns, n columns of a piece, k those that are picked, K entries
of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from turnout.machine.compiler import NUMBERS, at, function, pointer, whole
from turnout.parts.compression.codec import kernels
from turnout.parts.compression.codec.messages import Piece

SOURCE = Path(__file__).with_name("largest.c")
ARGUMENTS = (pointer, whole, whole, pointer, whole, whole, pointer, pointer)


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
    if kernels.picks_fit(x_CP, pieces):
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
    chosen = kernels.choose(x_CP, pieces)
    there_CK = chosen.there(kernels.tables(tuple(pieces), x_CP.device))
    return Picked(torch.where(there_CK, chosen.column_CK, 0).long(), there_CK)


def largest_with_torch(x_CP: Tensor, pieces: Sequence[Piece]) -> Picked:
    """The same in float64 on a GPU, or without a compiler."""
    columns, there = [], []
    for piece in pieces:
        size_Cn = x_CP[:, piece.start : piece.start + piece.size].abs()
        value_Ck, index_Ck = size_Cn.topk(min(piece.keep + 1, piece.size))
        if bool(((value_Ck[:, piece.keep :] == value_Ck[:, [piece.keep - 1]]) & (value_Ck[:, piece.keep :] > 0)).any()):
            # Of equals `topk` takes any, while a stable sort leaves them in order.
            value_Ck, index_Ck = size_Cn.sort(dim=1, descending=True, stable=True)
        value_Ck, index_Ck = value_Ck[:, : piece.keep], index_Ck[:, : piece.keep]
        index_Ck = torch.where(value_Ck != 0, index_Ck, piece.size).sort(1).values
        columns.append(piece.start + index_Ck.clamp(max=piece.size - 1))
        there.append(index_Ck < piece.size)
    return Picked(torch.cat(columns, 1), torch.cat(there, 1))
