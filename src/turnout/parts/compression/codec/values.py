"""Sparse messages with values: the k largest entries of each tensor, each as a float32.

`write_beside` sends several rows of a client at the same positions (the Fisher diagonal u and v = u ⊙ w, say), which
costs the positions once.

Shape letters: C rows, P columns, K picked entries of a row, V vectors sent at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.codec.bits import Coded
from turnout.parts.compression.codec.picks import largest, pieces_of
from turnout.parts.compression.codec.sparse import Form, read, write


@dataclass(frozen=True)
class Values:
    """The k = max(⌈n q⌉, 1) entries of largest size with their values, 0 elsewhere."""

    keep: float
    scope: str = "tensor"

    def form(self, slots: tuple[Slot, ...], vectors: int = 1) -> Form:
        return Form(pieces_of(slots, self.keep, self.scope), per_entry=vectors)

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Coded:
        """Encode rows; `x_CP` becomes what is left out of the messages."""
        form = self.form(slots)
        picked = largest(x_CP, form.pieces)
        value_CK = picked.of(x_CP).to(torch.float32)
        x_CP.scatter_add_(1, picked.column_CK, torch.where(picked.there_CK, -value_CK.to(x_CP.dtype), 0))
        return write(form, picked, value_CK)

    def read(self, coded: Coded, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Messages as rows again."""
        return self.read_beside(coded, slots, dtype, 1)[0]

    def write_beside(self, rows: Sequence[Tensor], slots: tuple[Slot, ...]) -> Coded:
        """Encode several rows [C, P] of each client at the positions where the first has its largest entries.

        >>> u, v = torch.tensor([[0.0, 4.0, 1.0]]), torch.tensor([[7.0, -2.0, 5.0]])
        >>> slots, codec = (Slot("w", (3,), 0, 3),), Values(keep=0.3)
        >>> coded = codec.write_beside([u, v], slots)
        >>> coded.length_C, codec.read_beside(coded, slots, torch.float32, vectors=2)
        (tensor([9]), [tensor([[0., 4., 0.]]), tensor([[ 0., -2.,  0.]])])
        """
        form = self.form(slots, len(rows))
        picked = largest(rows[0], form.pieces)
        return write(form, picked, torch.stack([picked.of(x) for x in rows], 2).flatten(1))

    def read_beside(self, coded: Coded, slots: tuple[Slot, ...], dtype: torch.dtype, vectors: int) -> list[Tensor]:
        """The rows of `write_beside` again, each [C, P]."""
        picked, _, float_CF = read(self.form(slots, vectors), coded)
        value_CKV = float_CF.to(dtype).view(len(float_CF), -1, vectors)
        width = sum(s.size for s in slots)
        return [picked.dense(value_CK, width) for value_CK in value_CKV.unbind(2)]

    def longest(self, slots: tuple[Slot, ...]) -> int:
        return self.form(slots).longest
