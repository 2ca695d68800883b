"""Dense messages of one byte an entry: whole multiples of a step, one step a tensor.

A message is the steps as float32, then the multiples, -127 to 127, as bytes.

Shape letters: C rows, P columns, S tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.machine.memory import to_device
from turnout.parts.compression.codec import byte_kernel
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

    def parts(self, like_CP: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of columns [P] and of rows [C, 1]; columns are drawn on the device of the rows."""
        column_P = torch.arange(like_CP.shape[1], device=like_CP.device)
        row_C = to_device(unit(keys(self.base + 1, self.client_C)), like_CP.device, like_CP.dtype)
        return unit(keys(self.base, column_P)).to(like_CP), row_C[:, None]


def turned(column_n: Tensor, row_C1: Tensor) -> Tensor:
    """The dither of entries: the sum of a column's and a row's number, less 1 from 1 on."""
    sum_Cn = column_n + row_C1
    return sum_Cn.sub_((sum_Cn >= 1).to(sum_Cn))


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
        head, step_CS = 4 * len(slots), _steps(x_CP, slots)
        byte_CB = torch.empty(rows, head + width, dtype=torch.uint8, device=x_CP.device)
        byte_CB[:, :head] = bytes_of(step_CS)
        whole_CP = byte_CB[:, head:].view(torch.int8)
        parts = None if self.dither is None else self.dither.parts(x_CP)
        if parts is not None and byte_kernel.fits(x_CP):
            decoded_CP = byte_kernel.quantise(x_CP, parts, step_CS, slots, whole_CP, LEVELS)
        else:
            decoded_CP = self._rounded(x_CP, parts, step_CS, slots, whole_CP)
        return Coded(byte_CB, torch.full((rows,), byte_CB.shape[1]), decoded_CP)

    @staticmethod
    def _rounded(
        x_CP: Tensor, dither: tuple[Tensor, Tensor] | None, step_CS: Tensor, slots: tuple[Slot, ...], whole_CP: Tensor
    ) -> Tensor:
        """Tensor by tensor: the whole multiples of the steps, and what they miss; returns what they mean."""
        decoded_CP = torch.empty_like(x_CP)
        for i, slot in enumerate(slots):
            own = slice(slot.start, slot.start + slot.size)
            step_C1 = step_CS[:, i, None].to(x_CP.dtype)
            at_Cn = x_CP[:, own] / torch.where(step_C1 > 0, step_C1, 1)
            whole_Cn = at_Cn.round_() if dither is None else at_Cn.add_(turned(dither[0][own], dither[1])).floor_()
            whole_CP[:, own] = whole_Cn.clamp_(-LEVELS, LEVELS)
            x_CP[:, own].sub_(torch.mul(whole_Cn, step_C1, out=decoded_CP[:, own]))
        return decoded_CP

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


def _steps(x_CP: Tensor, slots: tuple[Slot, ...]) -> Tensor:
    """The step of each tensor of each row: 1/127 of its largest entry."""
    step_CS = x_CP.new_zeros(len(x_CP), len(slots), dtype=torch.float32)
    for i, slot in enumerate(slots):
        x_Cn = x_CP[:, slot.start : slot.start + slot.size]
        if slot.size:
            size_C = torch.linalg.vector_norm(x_Cn, torch.inf, 1) if x_CP.is_cuda else x_Cn.abs().amax(1)
            step_CS[:, i] = size_C.div_(LEVELS)
    return step_CS
