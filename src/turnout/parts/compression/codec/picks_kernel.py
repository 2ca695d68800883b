"""Triton kernels for the k largest entries of each piece of a row: exactly those of `codec.picks.largest`, without
waiting for the GPU.

Floats are in the order of their bits without the sign. Four passes over the rows make a histogram of the next eight
(finally seven) bits of all entries that share the highest bits of the k-th largest; after them its size is known, and
how many entries equal to it are picked: the first ones. Zeros are never counted. Two more passes count and write the
picked entries. A program works on a tile: some neighbouring columns of one piece.

Shape letters: C rows, P columns, S pieces, T tiles of a row, K entries of a row.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from turnout.machine.triton_tools import jit, pieces, takes, tl
from turnout.parts.compression.codec.pieces import Piece

BLOCK = 2048  # columns of a tile: on an H200 the least of 2048 and 4096 with 4, 8 and 16 warps, and 8192 with 16
WARPS = 4
PASSES = 4
BINS = 256
FEW = 64  # entries of a tile that are counted one by one
MOST_ROWS = 1 << 16


@dataclass(frozen=True)
class Chosen:
    """Picked entries, piece after piece, columns rising: the first `count_CS` (int32) of each piece are there, with
    columns `column_CK` (int32) and values `value_CK`."""

    column_CK: Tensor
    value_CK: Tensor
    count_CS: Tensor

    def there(self, table: Tables) -> Tensor:
        """Mask of the entries that are there."""
        return table.rank_K < self.count_CS.index_select(1, table.piece_K)


@jit
def _narrowed(histogram_ptr, at, S, k, passes):
    """The highest bits of the k-th largest size after some passes, and how many entries that share them are picked."""
    place = tl.arange(0, 256)
    highest = k * 0
    for done in range(passes):
        count = tl.load(histogram_ptr + (done * tl.num_programs(1) * S + at) * 256 + place)
        from_here = tl.sum(count, 0) - tl.cumsum(count, 0) + count
        k = tl.minimum(k, tl.sum(count, 0))  # where fewer are not 0, all of them are picked
        values = tl.where(done < 3, 256, 128)
        digit = tl.minimum(tl.sum((from_here >= k).to(tl.int32), 0), values) - 1
        k -= tl.sum(tl.where(place > digit, count, 0), 0)
        highest = highest * values + digit
    return highest, k


@jit
def _sizes(x_ptr, tile_ptr, piece_ptr, xs_c, BLOCK: tl.constexpr):
    """This program's piece, its columns, which of them are real, and the entries with their sizes as whole numbers."""
    s = tl.load(tile_ptr + 2 * tl.program_id(0))
    p = tl.load(tile_ptr + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK)
    real = p < tl.load(piece_ptr + 5 * s + 1)
    x = tl.load(x_ptr + tl.program_id(1).to(tl.int64) * xs_c + p, mask=real, other=0.0)
    return s, p, real, x, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@jit
def _digits(x_ptr, tile_ptr, piece_ptr, histogram_ptr, S, xs_c, to_come, FEW: tl.constexpr, BLOCK: tl.constexpr):
    # to_come: 5 in the first pass, 2 in the last; numbers 0 and 1 would each be compiled by themselves
    s, _, real, _, size = _sizes(x_ptr, tile_ptr, piece_ptr, xs_c, BLOCK)
    at, done = tl.program_id(1) * S + s, 5 - to_come
    highest, _ = _narrowed(histogram_ptr, at, S, tl.load(piece_ptr + 5 * s + 2), done)
    real = real & (size > 0) & ((size >> (8 * to_come - 9)) == highest)
    digit = (size >> tl.maximum(8 * to_come - 17, 0)) & tl.where(to_come > 2, 255, 127)
    to = histogram_ptr + (done * tl.num_programs(1) * S + at) * 256
    if tl.sum(real.to(tl.int32), 0) > FEW:
        count = tl.histogram(digit, 256, mask=real)
        tl.atomic_add(to + tl.arange(0, 256), count, mask=count > 0, sem="relaxed")
    else:  # the last passes
        tl.atomic_add(to + digit, 1, mask=real, sem="relaxed")


@jit
def _least(piece_ptr, histogram_ptr, least_ptr, S):
    """The size of the smallest that is picked, and how many of its equals are."""
    s, at = tl.program_id(0), tl.program_id(1) * S + tl.program_id(0)
    least, equals = _narrowed(histogram_ptr, at, S, tl.load(piece_ptr + 5 * s + 2), 4)
    tl.store(least_ptr + 2 * at, least)
    tl.store(least_ptr + 2 * at + 1, equals)


@jit
def _count(x_ptr, tile_ptr, piece_ptr, least_ptr, count_ptr, S, T, xs_c, BLOCK: tl.constexpr):
    s, _, real, _, size = _sizes(x_ptr, tile_ptr, piece_ptr, xs_c, BLOCK)
    c = tl.program_id(1)
    least = tl.load(least_ptr + 2 * (c * S + s))
    to = count_ptr + 2 * c * T + tl.program_id(0)
    tl.store(to, tl.sum((real & (size > least)).to(tl.int32), 0))
    tl.store(to + T, tl.sum((real & (size == least)).to(tl.int32), 0))


@jit
def _gather(
    x_ptr, tile_ptr, piece_ptr, least_ptr, upto_ptr, column_ptr, value_ptr, picked_ptr, S, T, K, xs_c,
    BLOCK: tl.constexpr,
):  # fmt: skip
    s, p, real, x, size = _sizes(x_ptr, tile_ptr, piece_ptr, xs_c, BLOCK)
    tile, c, own = tl.program_id(0), tl.program_id(1), piece_ptr + 5 * s
    least, equals = tl.load(least_ptr + 2 * (c * S + s)), tl.load(least_ptr + 2 * (c * S + s) + 1)
    above, equal = real & (size > least), real & (size == least)
    upto, first = upto_ptr + 2 * c * T - 1, tl.load(own + 4)
    before = tl.load(upto + tile, mask=tile > 0, other=0) - tl.load(upto + first, mask=first > 0, other=0)
    alike = tl.load(upto + T + tile, mask=tile > 0, other=0) - tl.load(upto + T + first, mask=first > 0, other=0)
    one = above.to(tl.int32) + (equal.to(tl.int32) << 16)  # both are counted at once
    here = tl.cumsum(one, 0) - one
    rank = alike + (here >> 16)
    picked = above | (equal & (rank < equals))
    to, place = c.to(tl.int64) * K + tl.load(own + 3) + before, (here & 0xFFFF) + tl.minimum(rank, equals)
    tl.store(column_ptr + to + place, p, mask=picked)
    tl.store(value_ptr + to + place, x, mask=picked)
    if tile == first:
        behind = tl.load(own + 5 + 4)  # the table has one row more
        total = tl.load(upto + behind) - tl.load(upto + first, mask=first > 0, other=0)
        tl.store(picked_ptr + c * S + s, total + equals)


def fits(x_CP: Tensor, of: Sequence[Piece]) -> bool:
    """Whether the kernels work for such rows: their places are 32 bits wide."""
    return takes(x_CP) and 0 < len(x_CP) < MOST_ROWS and 0 < len(x_CP) * len(of) * BINS * PASSES < 1 << 31


@dataclass(frozen=True)
class Tables:
    """Lookup tables of the programs."""

    tile_T: Tensor  # piece, first column [T, 2]
    piece_S: Tensor  # first column, the one behind, entries kept, the first of them, first tile [S + 1, 5]
    piece_K: Tensor  # the piece of each entry
    rank_K: Tensor  # which entry of its piece
    tiles: int


@lru_cache(maxsize=64)
def tables(of: tuple[Piece, ...], device: torch.device) -> Tables:
    """The tables of these pieces."""
    tile: list[tuple[int, int]] = []
    rows: list[tuple[int, ...]] = []
    first = 0
    for s, piece in enumerate(of):
        rows.append((piece.start, piece.start + piece.size, piece.keep, first, len(tile)))
        tile += [(s, piece.start + BLOCK * i) for i in range(pieces(piece.size, BLOCK))]
        first += piece.keep
    rows.append((0, 0, 0, first, len(tile)))
    tile_T, piece_S = (torch.tensor(value, dtype=torch.int32) for value in (tile, rows))
    piece_K = torch.arange(len(of), dtype=torch.int32).repeat_interleave(piece_S[:-1, 2])
    rank_K = torch.arange(first, dtype=torch.int32) - piece_S[piece_K, 3]
    return Tables(tile_T.to(device), piece_S.to(device), piece_K.to(device), rank_K.to(device), len(tile))


def choose(x_CP: Tensor, of: Sequence[Piece]) -> Chosen:
    """The entries of largest size of every piece."""
    table, rows, S, K, device = tables(tuple(of), x_CP.device), len(x_CP), len(of), sum(p.keep for p in of), x_CP.device
    grid, xs_c = (table.tiles, rows), x_CP.stride(0)
    histogram = torch.zeros(PASSES, rows, S, BINS, dtype=torch.int32, device=device)
    sides = (x_CP, table.tile_T, table.piece_S)
    for done in range(PASSES):
        _digits[grid](*sides, histogram, S, xs_c, PASSES + 1 - done, FEW, BLOCK, num_warps=WARPS)
    least, count = (histogram.new_empty(rows, 2, width) for width in (S, table.tiles))
    _least[S, rows](table.piece_S, histogram, least, S, num_warps=1)
    _count[grid](*sides, least, count, S, table.tiles, xs_c, BLOCK, num_warps=WARPS)
    upto = count.cumsum(2, dtype=torch.int32)
    column_CK = torch.empty(rows, K, dtype=torch.int32, device=device)
    chosen = Chosen(column_CK, x_CP.new_empty(rows, K), column_CK.new_empty(rows, S))
    _gather[grid](
        *sides, least, upto, chosen.column_CK, chosen.value_CK, chosen.count_CS, S, table.tiles, K, xs_c, BLOCK,
        num_warps=WARPS,
    )  # fmt: skip
    return chosen
