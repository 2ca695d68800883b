"""Triton kernels for max-pooling without overlap; one byte per window is stored for backward. The functions to call are
at the end.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
from torch import Tensor

from turnout.engine.gpu.triton_tools import jit, pieces, tl

BLOCK = 1024  # numbers per program
WARPS = 4
WIDE_FROM = 2**31 - BLOCK  # from so many numbers on, indices need 64 bits, whose divisions are slow


@jit
def _pool(
    x_ptr, y_ptr, which_ptr, total, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    n = first * BLOCK + tl.arange(0, BLOCK)
    at = x_ptr + n // (OH * OW) * (H * W) + n // OW % OH * (KH * W) + n % OW * KW
    best = tl.load(at, mask=n < total, other=0.0)
    which = tl.zeros((BLOCK,), tl.int32)
    for tap in tl.static_range(1, KH * KW):
        x = tl.load(at + tap // KW * W + tap % KW, mask=n < total, other=0.0)
        better = (x > best) | (x != x)  # as in torch: of equal entries the first, and NaN wins
        best, which = tl.where(better, x, best), tl.where(better, tap, which)
    tl.store(y_ptr + n, best, mask=n < total)
    tl.store(which_ptr + n, which.to(tl.uint8), mask=n < total)


@jit
def _unpool(
    d_ptr, which_ptr, dx_ptr, total, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    n = first * BLOCK + tl.arange(0, BLOCK)
    row, column = n // W % H, n % W
    covered = (n < total) & (row < OH * KH) & (column < OW * KW)
    at = n // (H * W) * (OH * OW) + row // KH * OW + column // KW
    which = tl.load(which_ptr + at, mask=covered, other=255).to(tl.int32)
    d = tl.load(d_ptr + at, mask=covered, other=0.0)
    tl.store(dx_ptr + n, tl.where(covered & (which == row % KH * KW + column % KW), d, 0.0), mask=n < total)


def pool(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Max-pooling of [..., h, w] without overlap: the largest entry of each window, and its number in the window."""
    x, (h, w) = x.contiguous(), x.shape[-2:]
    shape = (*x.shape[:-2], h // kernel[0], w // kernel[1])
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    which = torch.empty(shape, dtype=torch.uint8, device=x.device)
    total = y.numel()
    _pool[pieces(total, BLOCK),](
        x, y, which, total, h, w, *shape[-2:], *kernel, x.numel() >= WIDE_FROM, BLOCK, num_warps=WARPS
    )
    return y, which


def unpool(d: Tensor, which: Tensor, kernel: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The gradient of `pool`'s input, of the given size (h, w), from the gradient of its output."""
    dx = torch.empty(*d.shape[:-2], *size, dtype=d.dtype, device=d.device)
    total = dx.numel()
    _unpool[pieces(total, BLOCK),](
        d.contiguous(), which, dx, total, *size, *which.shape[-2:], *kernel, total >= WIDE_FROM, BLOCK, num_warps=WARPS
    )
    return dx
