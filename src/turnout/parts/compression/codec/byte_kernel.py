"""A Triton kernel for dithered messages of one byte per entry: reads every entry once, and writes its byte, its decoded
value and the rest. Computes `codec.byte.Byte.write`, to the bit.

Shape letters: C rows, P columns, S tensors.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.machine.triton_tools import blank, installed, jit, pieces, tl

BLOCK = 1024  # numbers per program
WARPS = 4


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


def fits(x_CP: Tensor) -> bool:
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
    sent_CP = blank(x_CP, rows, width)
    slot_P = _slot_of(tuple(slot.size for slot in slots), x_CP.device)
    _quantise[pieces(width, BLOCK), rows](
        x_CP, column_P, row_C1, step_CS, slot_P, whole_CP, sent_CP, width, x_CP.stride(0), whole_CP.stride(0),
        sent_CP.stride(0), len(slots), levels, BLOCK, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return sent_CP
