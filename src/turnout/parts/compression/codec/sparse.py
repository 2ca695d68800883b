"""Sparse messages: the k largest entries of each tensor, as signs times one magnitude per tensor, or with their values.

One message, bit after bit, highest bit of a field first:

    S flags      1 where a piece has fewer entries than its k, which both sides know
    counts       for those pieces how many, in as many bits as k has
    signs        1 a negative entry (where the message has signs)
    remainders   (gap - 1) mod 2^b of every entry, b bits: gaps to the entry before, in its piece
    quotients    (gap - 1) div 2^b as that many 0 and a 1
    padding      0 up to a whole byte
    floats       little-endian float32: some for each piece, or some for each entry that is there

So k positions cost k (1 + b) + Σ floor((gap - 1) / 2^b) bits, as with separate Golomb code words; split like this, all
messages of a cohort are written and read at once, without a loop over entries.

Shape letters: C messages, P columns, S pieces, K entries of a row, N bits, B bytes, X fields, F
floats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.codec import kernels
from turnout.parts.compression.codec.messages import Piece, bytes_of, floats_of, pieces_of, refuse
from turnout.parts.compression.codec.picks import Picked, largest
from turnout.types import BYTE, Message


@dataclass(frozen=True)
class PieceTensors:
    """The numbers of all pieces as tensors, for all entries of a row where they end in K."""

    keep_S: Tensor
    bits_S: Tensor  # of a count
    first_S: Tensor  # the piece's first entry among K
    piece_K: Tensor
    rank_K: Tensor  # which entry of its piece
    start_K: Tensor
    end_K: Tensor
    golomb_K: Tensor
    widest_count: int
    widest_rest: int


@lru_cache(maxsize=64)
def tensors_of(pieces: tuple[Piece, ...], device: torch.device) -> PieceTensors:
    """The numbers of these pieces."""

    def whole(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    keep_S = whole([p.keep for p in pieces])
    piece_K = torch.arange(len(pieces), device=device).repeat_interleave(keep_S)
    first_S = keep_S.cumsum(0) - keep_S
    start_S, end_S = whole([p.start for p in pieces]), whole([p.start + p.size for p in pieces])
    bits, rests = [p.keep.bit_length() for p in pieces], [p.golomb for p in pieces]
    rank_K = torch.arange(len(piece_K), device=device) - first_S[piece_K]
    of_K = (start_S[piece_K], end_S[piece_K], whole(rests)[piece_K])
    return PieceTensors(
        keep_S, whole(bits), first_S, piece_K, rank_K, *of_K, max(bits, default=0), max(rests, default=0)
    )


def pack(bit_CN: Tensor) -> Tensor:
    """Eight bits a byte, the first bit highest; N is a multiple of 8.

    >>> pack(torch.tensor([[1, 0, 0, 0, 0, 0, 1, 1]], dtype=torch.uint8))
    tensor([[131]], dtype=torch.uint8)
    """
    byte_CB = bit_CN[:, 0::8] << 7
    for place in range(1, 8):
        byte_CB |= bit_CN[:, place::8] << (7 - place)
    return byte_CB


def unpack(byte_CB: Tensor) -> Tensor:
    """The bits of bytes: the inverse of `pack`."""
    place_8 = torch.arange(7, -1, -1, dtype=torch.uint8, device=byte_CB.device)
    return ((byte_CB[:, :, None] >> place_8) & 1).view(len(byte_CB), -1)


def put(bit_CN: Tensor, at_CX: Tensor, width_CX: Tensor, value_CX: Tensor, widest: int) -> None:
    """Write whole numbers into fields of at most `widest` bits, highest bit first; the last column takes the rest."""
    waste = bit_CN.shape[1] - 1
    for place in range(widest):
        left_CX = width_CX - 1 - place
        column_CX = torch.where(left_CX >= 0, at_CX + place, waste)
        bit_CN.scatter_(1, column_CX, ((value_CX >> left_CX.clamp(min=0)) & 1).to(torch.uint8))


def take(bit_CN: Tensor, at_CX: Tensor, width_CX: Tensor, widest: int) -> Tensor:
    """Read whole numbers; a field of no bits is 0. Fields must be inside the rows."""
    value_CX = torch.zeros_like(at_CX)
    for place in range(widest):
        inside_CX = place < width_CX
        bit_CX = bit_CN.gather(1, torch.where(inside_CX, at_CX + place, 0)).to(torch.int64)
        value_CX = torch.where(inside_CX, (value_CX << 1) | bit_CX, value_CX)
    return value_CX


def before(width_CX: Tensor) -> Tensor:
    """Start of each field when they follow one another."""
    return width_CX.cumsum(1) - width_CX


def write(
    codec: Values, pieces: tuple[Piece, ...], picked: Picked, float_CF: Tensor, negative_CK: Tensor | None = None
) -> Message:
    """Messages of picked entries; `float_CF`: per piece, or per entry (all of the first kind, then the second)."""
    table, there_CK = tensors_of(pieces, float_CF.device), picked.there_CK
    there = there_CK.to(torch.int64)
    rows, count_CS = len(there), there.new_zeros(len(there), len(table.keep_S)).index_add_(1, table.piece_K, there)
    few_CS = count_CS < table.keep_S
    count_width_CS = torch.where(few_CS, table.bits_S, 0)
    before_CK = torch.where(table.rank_K == 0, table.start_K - 1, torch.roll(picked.column_CK, 1, 1))
    gap_CK = picked.column_CK - before_CK - 1
    quotient_CK, rest_CK = gap_CK >> table.golomb_K, gap_CK & ((1 << table.golomb_K) - 1)
    sign_width_CK = there if negative_CK is not None else torch.zeros_like(there)
    widths = (torch.ones_like(count_CS), count_width_CS, sign_width_CK, there * table.golomb_K, there * quotient_CK)
    at = before(torch.cat([*widths[:-1], widths[-1] + there], 1))
    flags, counts, signs, rests, ends = at.split([width.shape[1] for width in widths], 1)
    bits_C = torch.cat(widths, 1).sum(1) + there.sum(1)
    floats_C = len(pieces) * codec.per_piece + there.sum(1) * codec.per_entry
    length_C = (bits_C + 7) // 8 + 4 * floats_C
    *lengths, few = torch.cat([length_C, few_CS.any()[None]]).tolist()  # one wait for the GPU
    size = max(lengths, default=0)

    bit_CN = torch.zeros(rows, 8 * size + 1, dtype=torch.uint8, device=there.device)
    ones = [(flags, widths[0], few_CS), (ends + widths[4], there, there_CK)]
    ones += [(signs, there, negative_CK)] if negative_CK is not None else []
    at_CX, width_CX, value_CX = (torch.cat(parts, 1) for parts in zip(*ones, strict=True))
    put(bit_CN, at_CX, width_CX, value_CX, 1)
    put(bit_CN, counts, count_width_CS, count_CS, table.widest_count if few else 0)
    put(bit_CN, rests, widths[3], rest_CK, table.widest_rest)
    byte_CB = pack(bit_CN[:, :-1])
    has, place = _float_bytes(codec, len(pieces), (bits_C + 7) // 8, there_CK)
    of_C4F = bytes_of(float_CF)
    if not few:
        byte_CB.scatter_(1, place, of_C4F)
    else:
        row, field = has.nonzero(as_tuple=True)
        byte_CB[row, place[row, field]] = of_C4F[row, field]
    return Message({BYTE: byte_CB}, torch.tensor(lengths, dtype=torch.int64))


def read(codec: Values, of: tuple[Piece, ...], longest: int, message: Message) -> tuple[Picked, Tensor, Tensor]:
    """The entries of messages, which of them are negative, and the floats; an impossible message raises UserError."""
    byte_CB, pieces = message.tensors[BYTE], len(of)
    table, length_C = tensors_of(of, byte_CB.device), message.bytes_C.to(byte_CB.device)
    refuse(length_C > longest, f"it is longer than {longest} bytes")
    bit_CN, end_C = unpack(byte_CB), 8 * length_C
    one_CS = torch.ones(len(byte_CB), pieces, dtype=torch.int64, device=byte_CB.device)
    refuse(pieces > end_C, "it ends before its first entry")
    few_CS = take(bit_CN, before(one_CS), one_CS, 1).bool()

    width_CS = torch.where(few_CS, table.bits_S, 0)
    at_C = pieces + width_CS.sum(1)
    refuse(at_C > end_C, "it ends among its counts")
    count_CS = take(bit_CN, pieces + before(width_CS), width_CS, table.widest_count)
    refuse((few_CS & (count_CS >= table.keep_S)).any(1), "a count is too large")
    there_CK = table.rank_K < torch.where(few_CS, count_CS, table.keep_S)[:, table.piece_K]
    there = there_CK.to(torch.int64)

    floats_C = pieces * codec.per_piece + there.sum(1) * codec.per_entry
    end_C = end_C - 32 * floats_C
    rest_width_CK, sign_C = there * table.golomb_K, there.sum(1) * codec.signs
    quotient_C = at_C + sign_C + rest_width_CK.sum(1)
    refuse(quotient_C + there.sum(1) > end_C, "it ends among its entries")
    negative_CK = take(bit_CN, at_C[:, None] + before(there), there, 1 if codec.signs else 0).bool()
    rest_CK = take(bit_CN, (at_C + sign_C)[:, None] + before(rest_width_CK), rest_width_CK, table.widest_rest)
    stop_C, above_CK = _read_quotients(bit_CN, quotient_C, end_C, there_CK)
    refuse((stop_C + 7) // 8 * 8 != end_C, "it continues after its last entry")
    gap_CK = ((above_CK << table.golomb_K) + rest_CK + 1) * there
    sum_CK = gap_CK.cumsum(1)
    column_CK = table.start_K - 1 + sum_CK - (sum_CK - gap_CK)[:, table.first_S[table.piece_K]]
    refuse((there_CK & (column_CK >= table.end_K)).any(1), "an entry is outside its tensor")
    has, place = _float_bytes(codec, pieces, end_C // 8, there_CK)
    float_CF = floats_of(torch.where(has, byte_CB.gather(1, torch.where(has, place, 0)), 0))
    refuse(~torch.isfinite(float_CF).all(1), "a number in it is not finite")
    return Picked(torch.where(there_CK, column_CK, 0), there_CK), negative_CK, float_CF


def _read_quotients(bit_CN: Tensor, start_C: Tensor, end_C: Tensor, there_CK: Tensor) -> tuple[Tensor, Tensor]:
    """Where the last entry ends, and the zeros before each entry's 1: the j-th 1 belongs to the j-th entry."""
    bit_CN = bit_CN[:, : int(end_C.max())] if len(end_C) else bit_CN  # floats are behind them
    place_N = torch.arange(bit_CN.shape[1], device=bit_CN.device)
    one_CN = bit_CN.bool() & (place_N >= start_C[:, None]) & (place_N < end_C[:, None])
    refuse(one_CN.sum(1) != there_CK.sum(1), "it has too few or too many entries")
    (row_I, at_I), (_, entry_I) = one_CN.nonzero(as_tuple=True), there_CK.nonzero(as_tuple=True)
    first_I = torch.ones_like(row_I, dtype=torch.bool)
    first_I[1:] = row_I[1:] != row_I[:-1]
    previous_I = torch.where(first_I, start_C[row_I] - 1, torch.roll(at_I, 1))
    zeros_CK = there_CK.new_zeros(there_CK.shape, dtype=torch.int64)
    zeros_CK[row_I, entry_I] = at_I - previous_I - 1
    return start_C + there_CK.sum(1) + zeros_CK.sum(1), zeros_CK


def _float_bytes(codec: Values, pieces: int, at_C: Tensor, there_CK: Tensor) -> tuple[Tensor, Tensor]:
    """For each byte of each float (those of pieces, then those of entries): whether the message has it, and where."""
    pieces_CF = there_CK.new_ones(len(there_CK), pieces * codec.per_piece)
    has_CF = torch.cat([pieces_CF, there_CK.repeat_interleave(codec.per_entry, 1)], 1)
    place_CF = at_C[:, None] + 4 * before(has_CF.to(torch.int64))
    byte_4 = torch.arange(4, device=has_CF.device)
    return has_CF.repeat_interleave(4, 1), (place_CF[:, :, None] + byte_4).flatten(1)


# -- the codecs


@dataclass(frozen=True)
class Values:
    """The k = max(⌈n q⌉, 1) entries of largest size with their values, 0 elsewhere.

    keep   q
    scope  the largest of each "tensor", or of the whole "model"
    """

    signs: ClassVar[bool] = False  # whether each entry has a sign bit
    per_piece: ClassVar[int] = 0  # float32 numbers of each piece
    per_entry: ClassVar[int] = 1  # float32 numbers of each entry

    keep: float
    scope: str = "tensor"

    def longest(self, slots: tuple[Slot, ...]) -> int:
        """Most bytes of a message."""
        pieces = pieces_of(slots, self.keep, self.scope)
        bits = 7 + sum(1 + p.keep.bit_length() + p.keep * (2 + p.golomb) + (p.size >> p.golomb) for p in pieces)
        return bits // 8 + 4 * (len(pieces) * self.per_piece + sum(p.keep for p in pieces) * self.per_entry)

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Message:
        """Encode rows; `x_CP` becomes the residual."""
        pieces = pieces_of(slots, self.keep, self.scope)
        picked = largest(x_CP, pieces)
        value_CK = picked.of(x_CP).to(torch.float32)
        x_CP.scatter_add_(1, picked.column_CK, torch.where(picked.there_CK, -value_CK.to(x_CP.dtype), 0))
        return write(self, pieces, picked, value_CK)

    def read(self, message: Message, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Decode messages to rows."""
        picked, _, value_CK = read(self, pieces_of(slots, self.keep, self.scope), self.longest(slots), message)
        return picked.dense(value_CK.to(dtype), sum(s.size for s in slots))


@dataclass(frozen=True)
class Ternary(Values):
    """ST(T; q): k = max(⌈n q⌉, 1) entries of largest |T|, μ the mean of those |T|; sign(T_i) μ there, 0 elsewhere."""

    signs: ClassVar[bool] = True
    per_piece: ClassVar[int] = 1
    per_entry: ClassVar[int] = 0

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Message:
        """Encode rows; `x_CP` becomes the residual.

        >>> x_CP = torch.tensor([[3.0, -1.0, 0.5, 0.0]])
        >>> message = Ternary(0.5).write(x_CP, (Slot("w", (4,), 0, 4),))
        >>> x_CP, message.bytes_C  # (3 + 1) / 2 = 2 was sent for each of the two: 1 + 2 + 2 (1 + 0) + 0 bits, and 2
        (tensor([[1.0000, 1.0000, 0.5000, 0.0000]]), tensor([5]))
        """
        pieces, longest = pieces_of(slots, self.keep, self.scope), self.longest(slots)
        if kernels.message_fits(x_CP, pieces, longest):
            return kernels.write_message(x_CP, pieces, longest)
        picked, piece_K = largest(x_CP, pieces), tensors_of(pieces, x_CP.device).piece_K
        value_CK = picked.of(x_CP)
        # The mean in float64: float32 sums depend on how many rows there are.
        by_piece = value_CK.abs().to(torch.float64).split([piece.keep for piece in pieces], 1)
        size_CS = torch.stack([own_Ck.mean(1) for own_Ck in by_piece], 1).to(torch.float32) if by_piece else value_CK
        sent_CK = size_CS[:, piece_K].to(x_CP.dtype).copysign(value_CK)
        x_CP.scatter_add_(1, picked.column_CK, torch.where(picked.there_CK, -sent_CK, 0))
        message = write(self, pieces, picked, size_CS, value_CK < 0)
        return replace(message, decoded=picked.dense(sent_CK, x_CP.shape[1]))

    def read(self, message: Message, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        pieces = pieces_of(slots, self.keep, self.scope)
        picked, negative_CK, size_CS = read(self, pieces, self.longest(slots), message)
        refuse(torch.signbit(size_CS).any(1), "a magnitude is negative")
        size_CK = size_CS[:, tensors_of(pieces, size_CS.device).piece_K].to(dtype)
        return picked.dense(torch.where(negative_CK, -size_CK, size_CK), sum(s.size for s in slots))
