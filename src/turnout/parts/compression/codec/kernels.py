"""Triton kernels of the codecs: what `picks.largest`, `sparse.Ternary.write` and `byte.Byte.write` compute, to the bit,
without waiting for the GPU.

Picks: floats are in the order of their bits without the sign. Four passes over the rows make a histogram of the next
eight (finally seven) bits of all entries that share the highest bits of the k-th largest; after them its size is known,
and how many entries equal to it are picked: the first ones. Zeros are never counted. Two more passes count and write
the picked entries. A program works on a tile: some neighbouring columns of one piece.

Sparse messages (layout: sparse.py): the counts of a row's pieces determine where its fields begin, except for the
quotients, which follow one another: their widths are summed between two kernels. Bits are or-ed into words whose bytes
lie as in the message; rows are as wide as the longest message.

Bytes: one pass reads every entry once, and writes its byte, its decoded value and the rest.

Shape letters: C rows, P columns, S pieces (tensors), T tiles of a row, K entries of a row, W words.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.machine.triton_tools import installed, jit, pieces, power_of_two, takes, tl
from turnout.parts.compression.codec.messages import Piece
from turnout.types import BYTE, Message

TILE = 2048  # columns of a tile: on an H200 the least of 2048 and 4096 with 4, 8 and 16 warps, and 8192 with 16
PASSES = 4
BINS = 256
FEW = 64  # entries of a tile that are counted one by one
MOST_ROWS = 1 << 16
ENTRIES = 512  # entries of a message per program
SUMMED = 2048  # entries that a program sums at a time
MOST_PIECES = 4096  # a program looks at all of a row's pieces
NUMBERS = 1024  # numbers of a dense message per program
WARPS = 4


# -- picks


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


def picks_fit(x_CP: Tensor, of: Sequence[Piece]) -> bool:
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
        tile += [(s, piece.start + TILE * i) for i in range(pieces(piece.size, TILE))]
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
        _digits[grid](*sides, histogram, S, xs_c, PASSES + 1 - done, FEW, TILE, num_warps=WARPS)
    least, count = (histogram.new_empty(rows, 2, width) for width in (S, table.tiles))
    _least[S, rows](table.piece_S, histogram, least, S, num_warps=1)
    _count[grid](*sides, least, count, S, table.tiles, xs_c, TILE, num_warps=WARPS)
    upto = count.cumsum(2, dtype=torch.int32)
    column_CK = torch.empty(rows, K, dtype=torch.int32, device=device)
    chosen = Chosen(column_CK, x_CP.new_empty(rows, K), column_CK.new_empty(rows, S))
    _gather[grid](
        *sides, least, upto, chosen.column_CK, chosen.value_CK, chosen.count_CS, S, table.tiles, K, xs_c, TILE,
        num_warps=WARPS,
    )  # fmt: skip
    return chosen


# -- sparse messages


@jit
def _put(word_ptr, at, is_one):
    """Set the bits at these places of a message."""
    tl.atomic_or(word_ptr + (at >> 5), 1 << (((at >> 3) & 3) * 8 + 7 - (at & 7)), mask=is_one, sem="relaxed")


@jit
def _means(value_ptr, count_ptr, piece_ptr, mean_ptr, S, K, BLOCK: tl.constexpr):
    s, c = tl.program_id(0), tl.program_id(1)
    keep, first = tl.load(piece_ptr + 5 * s + 2), tl.load(piece_ptr + 5 * s + 3)
    count = tl.load(count_ptr + c * S + s)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, keep, BLOCK):
        k = start + tl.arange(0, BLOCK)
        value = tl.load(value_ptr + c.to(tl.int64) * K + first + k, mask=k < count, other=0.0)
        total += tl.abs(value).to(tl.float64)
    tl.store(mean_ptr + c * S + s, (tl.sum(total, 0) / keep.to(tl.float64)).to(tl.float32))


@jit
def _heads(count_ptr, piece_ptr, own_ptr, base_ptr, word_ptr, S, words, BLOCK: tl.constexpr):
    """Flags and counts; where each piece's signs and remainders begin, and the quotients of the row (at S)."""
    c, s = tl.program_id(0), tl.arange(0, BLOCK)
    real = s < S
    count = tl.load(count_ptr + c * S + s, mask=real, other=0)
    keep = tl.load(piece_ptr + 5 * s + 2, mask=real, other=0)
    bits = tl.load(own_ptr + 2 * s, mask=real, other=0)
    rests = count * tl.load(own_ptr + 2 * s + 1, mask=real, other=0)
    few = real & (count < keep)
    width = tl.where(few, bits, 0)
    row = word_ptr + c.to(tl.int64) * words
    _put(row, s, few)
    at = S + tl.cumsum(width, 0) - width
    for place in range(tl.max(width, 0)):
        _put(row, at + place, (place < width) & (((count >> tl.maximum(width - 1 - place, 0)) & 1) == 1))
    signs = S + tl.sum(width, 0)
    remainders = signs + tl.sum(count, 0)
    base = base_ptr + 2 * c * (S + 1)
    tl.store(base + 2 * s, signs + tl.cumsum(count, 0) - count, mask=real)
    tl.store(base + 2 * s + 1, remainders + tl.cumsum(rests, 0) - rests, mask=real)
    tl.store(base + 2 * S, remainders + tl.sum(rests, 0))


@jit
def _send(
    x_ptr, sent_ptr, column_ptr, value_ptr, count_ptr, mean_ptr, piece_ptr, own_ptr, of_ptr, width_ptr, S, K, xs_c,
    ss_c, BLOCK: tl.constexpr,
):  # fmt: skip
    k, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    s = tl.load(of_ptr + k, mask=k < K, other=0)
    rank = k - tl.load(piece_ptr + 5 * s + 3)
    there = (k < K) & (rank < tl.load(count_ptr + c * S + s))
    column = tl.load(column_ptr + c * K + k, mask=there, other=0)
    value = tl.load(value_ptr + c * K + k, mask=there, other=0.0)
    mean = tl.load(mean_ptr + c * S + s)
    sent = tl.where(value < 0, -mean, mean)
    tl.store(x_ptr + c * xs_c + column, value - sent, mask=there)
    tl.store(sent_ptr + c * ss_c + column, sent, mask=there)
    before = tl.load(column_ptr + c * K + k - 1, mask=there & (rank > 0), other=0)
    before = tl.where(rank > 0, before, tl.load(piece_ptr + 5 * s) - 1)
    quotient = (column - before - 1) >> tl.load(own_ptr + 2 * s + 1)
    tl.store(width_ptr + c * K + k, tl.where(there, quotient + 1, 0), mask=k < K)


@jit
def _entries(
    column_ptr, value_ptr, count_ptr, piece_ptr, own_ptr, of_ptr, base_ptr, end_ptr, word_ptr, S, K, words,
    WIDEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    s = tl.load(of_ptr + k, mask=k < K, other=0)
    rank = k - tl.load(piece_ptr + 5 * s + 3)
    there = (k < K) & (rank < tl.load(count_ptr + c * S + s))
    column = tl.load(column_ptr + c * K + k, mask=there, other=0)
    before = tl.load(column_ptr + c * K + k - 1, mask=there & (rank > 0), other=0)
    gap = column - tl.where(rank > 0, before, tl.load(piece_ptr + 5 * s) - 1) - 1
    base, row = base_ptr + 2 * c * (S + 1), word_ptr + c * words
    _put(row, tl.load(base + 2 * S) + tl.load(end_ptr + c * K + k, mask=there, other=1) - 1, there)
    value = tl.load(value_ptr + c * K + k, mask=there, other=0.0)
    _put(row, tl.load(base + 2 * s) + rank, there & (value < 0))
    width = tl.load(own_ptr + 2 * s + 1)
    at = tl.load(base + 2 * s + 1) + rank * width
    for place in range(WIDEST):
        _put(row, at + place, there & (place < width) & (((gap >> tl.maximum(width - 1 - place, 0)) & 1) == 1))


@jit
def _finish(mean_ptr, base_ptr, end_ptr, byte_ptr, length_ptr, S, K, bytes_, BLOCK: tl.constexpr):
    """The magnitudes behind the bits, and the length."""
    c, s = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    at = (tl.load(base_ptr + 2 * c * (S + 1) + 2 * S) + tl.load(end_ptr + c * K + K - 1) + 7) // 8
    mean = tl.load(mean_ptr + c * S + s, mask=s < S, other=0.0).to(tl.int32, bitcast=True)
    for place in tl.static_range(4):
        to = byte_ptr + c * bytes_ + at + 4 * s + place
        tl.store(to, ((mean >> (8 * place)) & 255).to(tl.uint8), mask=s < S)
    tl.store(length_ptr + c, (at + 4 * S).to(tl.int64))


def message_fits(x_CP: Tensor, of: Sequence[Piece], longest: int) -> bool:
    """Whether the kernels work for such rows and messages."""
    small = len(of) <= MOST_PIECES and 8 * longest < 1 << 31
    return small and picks_fit(x_CP, of)


@lru_cache(maxsize=64)
def _bits(of: tuple[Piece, ...], device: torch.device) -> Tensor:
    """Bits of a count and of a remainder of each piece [S, 2]."""
    bits = [(piece.keep.bit_length(), piece.golomb) for piece in of]
    return torch.tensor(bits, dtype=torch.int32, device=device)


def write_message(x_CP: Tensor, of: tuple[Piece, ...], longest: int) -> Message:
    """Encode rows in messages of at most `longest` bytes; `x_CP` becomes the residual. Lengths are on the GPU too."""
    chosen, table = choose(x_CP, of), tables(of, x_CP.device)
    own_S, rows, S, K = _bits(of, x_CP.device), len(x_CP), len(of), sum(piece.keep for piece in of)
    column, value, count, table_S = chosen.column_CK, chosen.value_CK, chosen.count_CS, table.piece_S
    word_CW = count.new_zeros(rows, pieces(longest, 4))  # the message
    base_CS = count.new_empty(rows, S + 1, 2)  # where fields begin
    width_CK = count.new_empty(rows, K)  # bits of quotients
    mean_CS, sent_CP = x_CP.new_empty(rows, S), x_CP.new_zeros(rows, x_CP.shape[1])
    length_C = count.new_empty(rows, dtype=torch.int64)
    words, block, grid = word_CW.shape[1], power_of_two(S, 16, MOST_PIECES), (pieces(K, ENTRIES), rows)
    _means[S, rows](value, count, table_S, mean_CS, S, K, SUMMED, num_warps=WARPS)
    _heads[rows,](count, table_S, own_S, base_CS, word_CW, S, words, block, num_warps=WARPS)
    _send[grid](
        x_CP, sent_CP, column, value, count, mean_CS, table_S, own_S, table.piece_K, width_CK, S, K,
        x_CP.stride(0), sent_CP.stride(0), ENTRIES, num_warps=WARPS,
    )  # fmt: skip
    end_CK = width_CK.cumsum(1, dtype=torch.int32)
    widest = max(piece.golomb for piece in of)
    _entries[grid](
        column, value, count, table_S, own_S, table.piece_K, base_CS, end_CK, word_CW, S, K, words, widest, ENTRIES,
        num_warps=WARPS,
    )  # fmt: skip
    byte_CB = word_CW.view(torch.uint8)
    _finish[rows,](mean_CS, base_CS, end_CK, byte_CB, length_C, S, K, 4 * words, block, num_warps=WARPS)
    return Message({BYTE: byte_CB}, length_C, sent_CP)


# -- bytes


@jit
def _quantise(
    x_ptr, column_ptr, row_ptr, step_ptr, slot_ptr, whole_ptr, sent_ptr, P, xs_c, ws_c, ss_c, steps,
    LEVELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = p < P
    x = tl.load(x_ptr + c * xs_c + p, mask=real, other=0.0)
    step = tl.load(step_ptr + c * steps + tl.load(slot_ptr + p, mask=real, other=0), mask=real, other=1.0)
    at = tl.div_rn(x, tl.where(step > 0, step, 1.0))
    dither = tl.load(column_ptr + p, mask=real, other=0.0) + tl.load(row_ptr + c)
    dither = dither - tl.where(dither >= 1, 1.0, 0.0)
    whole = tl.floor(at + dither)
    whole = tl.minimum(tl.maximum(whole, -LEVELS), LEVELS)
    sent = whole * step
    tl.store(whole_ptr + c * ws_c + p, whole.to(tl.int8), mask=real)
    tl.store(sent_ptr + c * ss_c + p, sent, mask=real)
    tl.store(x_ptr + c * xs_c + p, x - sent, mask=real)


def bytes_fit(x_CP: Tensor) -> bool:
    """Whether the kernel works for such rows."""
    here = x_CP.is_cuda and x_CP.device.index == torch.cuda.current_device()
    return here and installed() and x_CP.dtype == torch.float32 and x_CP.stride(1) == 1 and x_CP.numel() > 0


@lru_cache(maxsize=16)
def _slot_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The tensor of each column."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(torch.int32).to(device)


def quantise(
    x_CP: Tensor, dither: tuple[Tensor, Tensor], step_CS: Tensor, slots: tuple[Slot, ...], whole_CP: Tensor, levels: int
) -> Tensor:
    """Write whole multiples of the steps into `whole_CP` and leave the rest in `x_CP`; returns the decoded values."""
    (rows, width), (column_P, row_C1) = x_CP.shape, dither
    sent_CP = x_CP.new_empty(rows, width)
    slot_P = _slot_of(tuple(slot.size for slot in slots), x_CP.device)
    _quantise[pieces(width, NUMBERS), rows](
        x_CP, column_P, row_C1, step_CS, slot_P, whole_CP, sent_CP, width, x_CP.stride(0), whole_CP.stride(0),
        sent_CP.stride(0), len(slots), levels, NUMBERS, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return sent_CP
