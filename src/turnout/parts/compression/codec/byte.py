"""Dense messages of one byte an entry: whole multiples of a step, one step a tensor.

A message is the steps as float32, then the multiples, -127 to 127, as bytes.

Shape letters: C rows, P columns, S tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.codec.bits import Coded, bytes_of, floats_of, refuse
from turnout.rng import keys, unit

LEVELS = 127


@dataclass(frozen=True)
class Dither:
    """What is added before rounding down: for every entry uniform in [0, 1), so that the rounding is right in the mean.

    The number of a column is drawn for all rows and turned round by an amount of the row's own: entries of a row are
    independent, and two rows are too in every single column.
    """

    base: int  # the key they are drawn under
    client_C: Tensor

    def at(self, slot: Slot, like: Tensor) -> Tensor:
        """The numbers of a tensor's columns, drawn on the device of the rows."""
        column_n = torch.arange(slot.start, slot.start + slot.size, device=like.device)
        row_C = unit(keys(self.base + 1, self.client_C)).to(like)
        sum_Cn = unit(keys(self.base, column_n)).to(like) + row_C[:, None]
        return sum_Cn.sub_((sum_Cn >= 1).to(like))


@dataclass(frozen=True)
class Byte:
    """x_i as step · m_i, step = max |x| / 127 of its tensor; m_i rounded to the nearest, or by a dither."""

    dither: Dither | None = None

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Coded:
        """Encode rows; `x_CP` becomes what is left out of the messages.

        >>> x_CP = torch.tensor([[127.0, -2.25, 0.0]])
        >>> coded = Byte().write(x_CP, (Slot("w", (3,), 0, 3),))
        >>> x_CP, coded.length_C
        (tensor([[ 0.0000, -0.2500,  0.0000]]), tensor([7]))
        """
        rows, width = x_CP.shape
        step_CS = x_CP.new_zeros(rows, len(slots), dtype=torch.float32)
        whole_CP = torch.empty(rows, width, dtype=torch.int8, device=x_CP.device)
        decoded_CP = torch.empty_like(x_CP)
        for i, slot in enumerate(slots):
            x_Cn = x_CP[:, slot.start : slot.start + slot.size]
            step_CS[:, i] = x_Cn.abs().amax(1).div_(LEVELS) if slot.size else 0
            step_C1 = step_CS[:, i, None].to(x_CP.dtype)
            at_Cn = x_Cn / torch.where(step_C1 > 0, step_C1, 1)
            whole_Cn = at_Cn.round_() if self.dither is None else at_Cn.add_(self.dither.at(slot, at_Cn)).floor_()
            whole_Cn.clamp_(-LEVELS, LEVELS)
            whole_CP[:, slot.start : slot.start + slot.size] = whole_Cn
            sent_Cn = torch.mul(whole_Cn, step_C1, out=decoded_CP[:, slot.start : slot.start + slot.size])
            x_Cn.sub_(sent_Cn)
        byte_CB = torch.cat([bytes_of(step_CS), whole_CP.view(torch.uint8)], 1)
        return Coded(byte_CB, torch.full((rows,), byte_CB.shape[1]), decoded_CP)

    def read(self, coded: Coded, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Messages as rows again."""
        length = self.longest(slots)
        refuse(coded.length_C != length, f"it has not {length} bytes")
        head = 4 * len(slots)
        step_CS = floats_of(coded.byte_CB[:, :head])
        largest_CS = step_CS * LEVELS  # a finite step can still make an infinite entry
        refuse((~torch.isfinite(largest_CS) | torch.signbit(step_CS)).any(1), "a step is too large or negative")
        x_CP = coded.byte_CB[:, head:length].view(torch.int8).to(dtype)
        refuse((x_CP < -LEVELS).any(1), "an entry is below the lowest")
        for i, slot in enumerate(slots):
            x_CP[:, slot.start : slot.start + slot.size].mul_(step_CS[:, i, None].to(dtype))
        return x_CP

    def longest(self, slots: tuple[Slot, ...]) -> int:
        return 4 * len(slots) + sum(s.size for s in slots)
