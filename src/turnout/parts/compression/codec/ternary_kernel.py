"""Triton kernels that write sparse ternary messages: the result of `Ternary.write`, to the bit, in a dozen launches and
without waiting for the GPU.

The layout of a message is in codec/sparse.py. The counts of a row's pieces determine where its fields begin, except for
the quotients, which follow one another: their widths are summed between two kernels. Bits are or-ed into words whose
bytes lie as in the message; rows are as wide as the longest message.

Shape letters: C rows, P columns, S pieces, K entries of a row, W words.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from turnout.machine.triton_tools import jit, pieces, power_of_two, tl
from turnout.parts.compression.codec import picks_kernel
from turnout.parts.compression.codec.bits import Coded
from turnout.parts.compression.codec.pieces import Piece
from turnout.parts.compression.codec.sparse import Form

BLOCK = 512  # entries per program
SUMMED = 2048  # entries that a program sums at a time
WARPS = 4
MOST_PIECES = 4096  # a program looks at all of a row's pieces


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


def fits(x_CP: Tensor, form: Form) -> bool:
    """Whether the kernels work for such rows and messages."""
    small = len(form.pieces) <= MOST_PIECES and 8 * form.longest < 1 << 31
    return small and picks_kernel.fits(x_CP, form.pieces)


@lru_cache(maxsize=64)
def _bits(of: tuple[Piece, ...], device: torch.device) -> Tensor:
    """Bits of a count and of a remainder of each piece [S, 2]."""
    bits = [(piece.keep.bit_length(), piece.golomb) for piece in of]
    return torch.tensor(bits, dtype=torch.int32, device=device)


def write(form: Form, x_CP: Tensor) -> Coded:
    """Encode rows; `x_CP` becomes the residual. Lengths are on the GPU too."""
    chosen, table = picks_kernel.choose(x_CP, form.pieces), picks_kernel.tables(form.pieces, x_CP.device)
    own_S, rows, S, K = _bits(form.pieces, x_CP.device), len(x_CP), len(form.pieces), form.entries
    column, value, count, of = chosen.column_CK, chosen.value_CK, chosen.count_CS, table.piece_S
    word_CW = count.new_zeros(rows, pieces(form.longest, 4))  # the message
    base_CS, width_CK = (
        count.new_empty(rows, S + 1, 2),
        count.new_empty(rows, K),
    )  # where fields begin; bits of quotients
    mean_CS, sent_CP = x_CP.new_empty(rows, S), x_CP.new_zeros(rows, x_CP.shape[1])
    length_C = count.new_empty(rows, dtype=torch.int64)
    words, block, grid = word_CW.shape[1], power_of_two(S, 16, MOST_PIECES), (pieces(K, BLOCK), rows)
    _means[S, rows](value, count, of, mean_CS, S, K, SUMMED, num_warps=WARPS)
    _heads[rows,](count, of, own_S, base_CS, word_CW, S, words, block, num_warps=WARPS)
    _send[grid](
        x_CP, sent_CP, column, value, count, mean_CS, of, own_S, table.piece_K, width_CK, S, K,
        x_CP.stride(0), sent_CP.stride(0), BLOCK, num_warps=WARPS,
    )  # fmt: skip
    end_CK = width_CK.cumsum(1, dtype=torch.int32)
    widest = max(piece.golomb for piece in form.pieces)
    _entries[grid](
        column, value, count, of, own_S, table.piece_K, base_CS, end_CK, word_CW, S, K, words, widest, BLOCK,
        num_warps=WARPS,
    )  # fmt: skip
    byte_CB = word_CW.view(torch.uint8)
    _finish[rows,](mean_CS, base_CS, end_CK, byte_CB, length_C, S, K, 4 * words, block, num_warps=WARPS)
    return Coded(byte_CB, length_C, sent_CP)
