"""Sparse messages: the k largest entries of each tensor, as signs times one magnitude per tensor, or with their values.

Shape letters: C rows, P columns, K picked entries of a row, S pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.codec import ternary_kernel
from turnout.parts.compression.codec.bits import Coded, refuse
from turnout.parts.compression.codec.picks import largest
from turnout.parts.compression.codec.pieces import pieces_of
from turnout.parts.compression.codec.sparse import Form, read, tensors_of, write


@dataclass(frozen=True)
class Values:
    """The k = max(⌈n q⌉, 1) entries of largest size with their values, 0 elsewhere.

    keep   q
    scope  the largest of each "tensor", or of the whole "model"
    """

    keep: float
    scope: str = "tensor"

    def form(self, slots: tuple[Slot, ...]) -> Form:
        """The layout of the messages."""
        return Form(pieces_of(slots, self.keep, self.scope), per_entry=1)

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Coded:
        """Encode rows; `x_CP` becomes the residual."""
        form = self.form(slots)
        picked = largest(x_CP, form.pieces)
        value_CK = picked.of(x_CP).to(torch.float32)
        x_CP.scatter_add_(1, picked.column_CK, torch.where(picked.there_CK, -value_CK.to(x_CP.dtype), 0))
        return write(form, picked, value_CK)

    def read(self, coded: Coded, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Decode messages to rows."""
        picked, _, value_CK = read(self.form(slots), coded)
        return picked.dense(value_CK.to(dtype), sum(s.size for s in slots))

    def longest(self, slots: tuple[Slot, ...]) -> int:
        """Most bytes of a message."""
        return self.form(slots).longest


@dataclass(frozen=True)
class Ternary(Values):
    """ST(T; q): k = max(⌈n q⌉, 1) entries of largest |T|, μ the mean of those |T|; sign(T_i) μ there, 0 elsewhere."""

    def form(self, slots: tuple[Slot, ...]) -> Form:
        return Form(pieces_of(slots, self.keep, self.scope), signs=True, per_piece=1)

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Coded:
        """Encode rows; `x_CP` becomes the residual.

        >>> x_CP = torch.tensor([[3.0, -1.0, 0.5, 0.0]])
        >>> coded = Ternary(0.5).write(x_CP, (Slot("w", (4,), 0, 4),))
        >>> x_CP, coded.length_C  # (3 + 1) / 2 = 2 was sent for each of the two: 1 + 2 + 2 (1 + 0) + 0 bits, and 2
        (tensor([[1.0000, 1.0000, 0.5000, 0.0000]]), tensor([5]))
        """
        form = self.form(slots)
        if ternary_kernel.fits(x_CP, form):
            return ternary_kernel.write(form, x_CP)
        picked, piece_K = largest(x_CP, form.pieces), tensors_of(form.pieces, x_CP.device).piece_K
        value_CK = picked.of(x_CP)
        # The mean in float64: float32 sums depend on how many rows there are.
        by_piece = value_CK.abs().to(torch.float64).split([piece.keep for piece in form.pieces], 1)
        size_CS = torch.stack([own_Ck.mean(1) for own_Ck in by_piece], 1).to(torch.float32) if by_piece else value_CK
        sent_CK = size_CS[:, piece_K].to(x_CP.dtype).copysign(value_CK)
        x_CP.scatter_add_(1, picked.column_CK, torch.where(picked.there_CK, -sent_CK, 0))
        return replace(write(form, picked, size_CS, value_CK < 0), decoded_CP=picked.dense(sent_CK, x_CP.shape[1]))

    def read(self, coded: Coded, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        form = self.form(slots)
        picked, negative_CK, size_CS = read(form, coded)
        refuse(torch.signbit(size_CS).any(1), "a magnitude is negative")
        size_CK = size_CS[:, tensors_of(form.pieces, size_CS.device).piece_K].to(dtype)
        return picked.dense(torch.where(negative_CK, -size_CK, size_CK), sum(s.size for s in slots))
