"""Sparse messages with values: the k largest entries of each tensor, each as a float32.

Shape letters: C rows, P columns, K picked entries of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.codec.bits import Coded
from turnout.parts.compression.codec.picks import largest
from turnout.parts.compression.codec.pieces import pieces_of
from turnout.parts.compression.codec.sparse import Form, read, write


@dataclass(frozen=True)
class Values:
    """The k = max(⌈n q⌉, 1) entries of largest size with their values, 0 elsewhere."""

    keep: float
    scope: str = "tensor"

    def form(self, slots: tuple[Slot, ...]) -> Form:
        return Form(pieces_of(slots, self.keep, self.scope), per_entry=1)

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Coded:
        """Encode rows; `x_CP` becomes what is left out of the messages."""
        form = self.form(slots)
        picked = largest(x_CP, form.pieces)
        value_CK = picked.of(x_CP).to(torch.float32)
        x_CP.scatter_add_(1, picked.column_CK, torch.where(picked.there_CK, -value_CK.to(x_CP.dtype), 0))
        return write(form, picked, value_CK)

    def read(self, coded: Coded, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Messages as rows again."""
        picked, _, value_CK = read(self.form(slots), coded)
        return picked.dense(value_CK.to(dtype), sum(s.size for s in slots))

    def longest(self, slots: tuple[Slot, ...]) -> int:
        return self.form(slots).longest
