"""Dense messages of one byte per entry: whole multiples of a step, one step per tensor.

A message is the steps as float32, then the multiples, -127 to 127, as bytes.

Shape letters: C rows, P columns, S tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.machine.memory import to_device
from turnout.parts.compression.codec import kernels
from turnout.parts.compression.codec.messages import bytes_of, floats_of, refuse
from turnout.rng import keys, unit
from turnout.types import BYTE, Message

LEVELS = 127


@dataclass(frozen=True)
class Dither:
    """A number uniform in [0, 1) for every entry, added before rounding down so that the rounding is unbiased.

    A number is drawn for each column and shifted, modulo 1, by one for each row: the entries of a row are independent,
    and so are two rows in any single column.

    base      the key they are drawn under
    client_C  the clients of the rows
    """

    base: int
    client_C: Tensor

    def parts(self, like_CP: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of columns [P] and of rows [C, 1]; columns are drawn on the device of the rows."""
        column_P = torch.arange(like_CP.shape[1], device=like_CP.device)
        row_C = to_device(unit(keys(self.base + 1, self.client_C)), like_CP.device, like_CP.dtype)
        return unit(keys(self.base, column_P)).to(like_CP), row_C[:, None]


def turned(column_n: Tensor, row_C1: Tensor) -> Tensor:
    """The dither of entries: the sum of a column's and a row's number, modulo 1."""
    sum_Cn = column_n + row_C1
    return sum_Cn.sub_((sum_Cn >= 1).to(sum_Cn))


@dataclass(frozen=True)
class Byte:
    """x_i as step · m_i, step = max |x| / 127 of its tensor; m_i rounded to the nearest, or by a dither."""

    dither: Dither | None = None

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Message:
        """Encode rows; `x_CP` becomes the residual.

        >>> x_CP = torch.tensor([[127.0, -2.25, 0.0]])
        >>> message = Byte().write(x_CP, (Slot("w", (3,), 0, 3),))
        >>> x_CP, message.bytes_C
        (tensor([[ 0.0000, -0.2500,  0.0000]]), tensor([7]))
        """
        rows, width = x_CP.shape
        head, step_CS = 4 * len(slots), x_CP.new_zeros(rows, len(slots), dtype=torch.float32)
        columns = [slice(slot.start, slot.start + slot.size) for slot in slots]
        for i, own in enumerate(columns):
            if slots[i].size:
                x_Cn = x_CP[:, own]
                size_C = torch.linalg.vector_norm(x_Cn, torch.inf, 1) if x_CP.is_cuda else x_Cn.abs().amax(1)
                step_CS[:, i] = size_C.div_(LEVELS)
        byte_CB = torch.empty(rows, head + width, dtype=torch.uint8, device=x_CP.device)
        byte_CB[:, :head] = bytes_of(step_CS)
        whole_CP = byte_CB[:, head:].view(torch.int8)
        dither = None if self.dither is None else self.dither.parts(x_CP)
        if dither is not None and kernels.bytes_fit(x_CP):
            decoded_CP = kernels.quantise(x_CP, dither, step_CS, slots, whole_CP, LEVELS)
            return Message({BYTE: byte_CB}, torch.full((rows,), byte_CB.shape[1]), decoded_CP)
        decoded_CP = torch.empty_like(x_CP)
        for i, own in enumerate(columns):
            step_C1 = step_CS[:, i, None].to(x_CP.dtype)
            at_Cn = x_CP[:, own] / torch.where(step_C1 > 0, step_C1, 1)
            whole_Cn = at_Cn.round_() if dither is None else at_Cn.add_(turned(dither[0][own], dither[1])).floor_()
            whole_CP[:, own] = whole_Cn.clamp_(-LEVELS, LEVELS)
            x_CP[:, own].sub_(torch.mul(whole_Cn, step_C1, out=decoded_CP[:, own]))
        return Message({BYTE: byte_CB}, torch.full((rows,), byte_CB.shape[1]), decoded_CP)

    def read(self, message: Message, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Decode messages to rows."""
        length = self.longest(slots)
        refuse(message.bytes_C != length, f"it does not have {length} bytes")
        head = 4 * len(slots)
        step_CS = floats_of(message.tensors[BYTE][:, :head])
        largest_CS = step_CS * LEVELS  # a finite step can still make an infinite entry
        refuse((~torch.isfinite(largest_CS) | torch.signbit(step_CS)).any(1), "a step is too large or negative")
        x_CP = message.tensors[BYTE][:, head:length].view(torch.int8).to(dtype)
        refuse((x_CP < -LEVELS).any(1), "an entry is below the lowest")
        for i, slot in enumerate(slots):
            x_CP[:, slot.start : slot.start + slot.size].mul_(step_CS[:, i, None].to(dtype))
        return x_CP

    def longest(self, slots: tuple[Slot, ...]) -> int:
        """Bytes of every message."""
        return 4 * len(slots) + sum(s.size for s in slots)
