"""Triton kernels that are one pass over the activations: the addressed dropout, and max-pooling without overlap.

The dropout's mask is never written: both directions hash the same addresses, with the integers of `rng.keys` and
`dropout.keep_mask`. Pooling keeps one byte per window. The host functions are at the end.

Shape letters: c clients of a chunk, i channels, B batch, L positions of an image.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
from torch import Tensor

from turnout.engine.gpu.triton_tools import jit, pieces, tl
from turnout.rng import _GOLDEN, _MIX_1, _MIX_2

BLOCK = 1024  # numbers one program works on
WARPS = 4
WIDE_FROM = 2**31 - BLOCK  # numbers from which places need 64 bits, whose divisions are slow


@jit
def _drop(
    x_ptr, key_ptr, y_ptr, N, xs_c, xs_0, xs_1, key_s, at_0, at_1, at_2, least, gain,
    INNER: tl.constexpr, L: tl.constexpr,
    GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second, last = n // (INNER * L), n // L % INNER, n % L
    position = first * at_0 + second * at_1 + last * at_2
    z = position.to(tl.int64) * GOLDEN + tl.load(key_ptr + c * key_s)
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MIX_2
    z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    kept = ((z >> 20) & 0x7FFFFFFF) >= least
    x = tl.load(x_ptr + c * xs_c + first * xs_0 + second * xs_1 + last, mask=n < N, other=0.0)
    tl.store(y_ptr + c * N + n, x * tl.where(kept, gain, 0.0), mask=n < N)


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
        better = (x > best) | (x != x)  # as torch: the first of equals, and what is not a number wins
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


def drop(x: Tensor, key_c: Tensor, p: float, whole_channels: bool) -> Tensor:
    """x * mask with the mask of `dropout.keep_mask`, for x [c, i, B, h, w] or [c, B, i], 0 < p < 1."""
    c, N = x.shape[0], x[0].numel()
    if x.dim() == 5:  # the address counts as a client alone does: [B, i, h, w], or [B, i] for whole channels
        i, B, L = x.shape[1], x.shape[2], x.shape[3] * x.shape[4]
        at = (1, i, 0) if whole_channels else (L, i * L, 1)
        x = x if x.stride(4) == 1 and x.stride(3) == x.shape[4] else x.contiguous()
        strides = x.stride()[:3]
    else:
        x, B, L, at = x.contiguous(), 1, N, (0, 0, 1)
        strides = (N, 0, 0)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _drop[pieces(N, BLOCK), c](
        x, key_c, y, N, *strides, key_c.stride(0), *at, int(p * 2**31), 1 / (1 - p),
        B, L, _GOLDEN, _MIX_1, _MIX_2, BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return y


def pool(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Max-pooling of [..., h, w] by windows side by side: the largest, and which of its window it was."""
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
    """The gradient of `pool`'s input, of the given size (h, w), from its output's."""
    dx = torch.empty(*d.shape[:-2], *size, dtype=d.dtype, device=d.device)
    total = dx.numel()
    _unpool[pieces(total, BLOCK),](
        d.contiguous(), which, dx, total, *size, *which.shape[-2:], *kernel, total >= WIDE_FROM, BLOCK, num_warps=WARPS
    )
    return dx
