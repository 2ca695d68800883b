"""Triton kernels for max-pooling without overlap, which stores one byte per window for backward, and for addressed
dropout, whose mask is never stored: forward and backward compute the same hashes (`engine.dropout.keep_mask`).

Images lie in memory one after another, by channel or by sample, and so do the results; or pixel by pixel with all
channels side by side (pixels.py): of those the result is [c, B, i, h, w] in memory, as a dense layer reads it.

Shape letters: c clients of a chunk, i channels, B batch, L positions of an image.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turnout.engine.kernels.pixels import by_pixel
from turnout.machine.triton_tools import blank, jit, mixed, pieces, power_of_two, tl
from turnout.rng import _GOLDEN, _MIX_1, _MIX_2

BLOCK = 1024  # numbers per program
WARPS = 4
WIDE_FROM = 2**31 - BLOCK  # from so many numbers on, indices need 64 bits, whose divisions are slow


@jit
def _entries(WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """A program's entries of the whole tensor."""
    first = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    return first * BLOCK + tl.arange(0, BLOCK)


@jit
def _store_largest(at, real, y_at, which_at, down, right, KH: tl.constexpr, KW: tl.constexpr):
    """Of windows that begin at `at`, with rows and columns so far apart: the largest entry, and its number.

    As in torch: of equal entries the first, and NaN wins.
    """
    best = tl.load(at, mask=real, other=0.0)
    which = tl.zeros(best.shape, tl.int32)
    for tap in tl.static_range(1, KH * KW):
        x = tl.load(at + (tap // KW * down + tap % KW * right), mask=real, other=0.0)
        better = (x > best) | (x != x)
        best, which = tl.where(better, x, best), tl.where(better, tap, which)
    tl.store(y_at, best, mask=real)
    tl.store(which_at, which.to(tl.uint8), mask=real)


@jit
def _pool(
    x_ptr, y_ptr, which_ptr, total, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = _entries(WIDE, BLOCK)
    at = x_ptr + n // (OH * OW) * (H * W) + n // OW % OH * (KH * W) + n % OW * KW
    _store_largest(at, n < total, y_ptr + n, which_ptr + n, W, 1, KH, KW)


@jit
def _unpool(
    d_ptr, which_ptr, dx_ptr, total, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = _entries(WIDE, BLOCK)
    row, column = n // W % H, n % W
    covered = (n < total) & (row < OH * KH) & (column < OW * KW)
    at = n // (H * W) * (OH * OW) + row // KH * OW + column // KW
    which = tl.load(which_ptr + at, mask=covered, other=255).to(tl.int32)
    d = tl.load(d_ptr + at, mask=covered, other=0.0)
    tl.store(dx_ptr + n, tl.where(covered & (which == row % KH * KW + column % KW), d, 0.0), mask=n < total)


@jit
def _window(
    I, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Of a program's windows in pictures by pixel: which are real, where each begins, where its result is."""
    image = tl.program_id(0).to(tl.int64)
    p = (tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P))[:, None]
    i = (tl.program_id(2) * BLOCK_I + tl.arange(0, BLOCK_I))[None, :]
    corner = image * (H * W * I) + (p // OW * (KH * W) + p % OW * KW) * I + i
    return (p < OH * OW) & (i < I), corner, image * (I * OH * OW) + i * (OH * OW) + p


@jit
def _pool_pixels(
    x_ptr, y_ptr, which_ptr, I, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    real, corner, to = _window(I, H, W, OH, OW, KH, KW, BLOCK_P, BLOCK_I)
    _store_largest(x_ptr + corner, real, y_ptr + to, which_ptr + to, W * I, I, KH, KW)


@jit
def _unpool_pixels(
    d_ptr, which_ptr, dx_ptr, I, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    real, corner, at = _window(I, H, W, OH, OW, KH, KW, BLOCK_P, BLOCK_I)
    d = tl.load(d_ptr + at, mask=real, other=0.0)
    which = tl.load(which_ptr + at, mask=real, other=255).to(tl.int32)
    to = dx_ptr + corner
    for tap in tl.static_range(0, KH * KW):
        tl.store(to + (tap // KW * W + tap % KW) * I, tl.where(which == tap, d, 0.0), mask=real)


def pool_pixels(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """`pool` of [c, i, B, h, w] that lies pixel by pixel."""
    x, (c, i, B, h, w) = by_pixel(x), x.shape
    shape = (c, B, i, h // kernel[0], w // kernel[1])
    y = blank(x, *shape)
    which = blank(x, *shape, dtype=torch.uint8)
    grid, blocks = _pixel_grid(shape)
    _pool_pixels[grid](x, y, which, i, h, w, *shape[3:], *kernel, *blocks, num_warps=WARPS)
    return y.transpose(1, 2), which.transpose(1, 2)


def unpool_pixels(d: Tensor, which: Tensor, kernel: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The gradient of the input of `pool_pixels`, which lies pixel by pixel too."""
    d, which = d.transpose(1, 2).contiguous(), which.transpose(1, 2)
    (c, B, i, oh, ow), (h, w) = d.shape, size
    covered = oh * kernel[0] == h and ow * kernel[1] == w
    dx = blank(d, c, B, h, w, i) if covered else d.new_zeros(c, B, h, w, i)
    grid, blocks = _pixel_grid(d.shape)
    _unpool_pixels[grid](d, which, dx, i, h, w, oh, ow, *kernel, *blocks, num_warps=WARPS)
    return dx.permute(0, 4, 1, 2, 3)


def _pixel_grid(shape: Sequence[int]) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Programs, and the positions and channels of each, for pooled images [c, B, i, h, w]."""
    c, B, i, h, w = shape
    block_p, block_i = power_of_two(h * w, 16, 32), power_of_two(i, 16, 32)
    return (c * B, pieces(h * w, block_p), pieces(i, block_i)), (block_p, block_i)


def pool(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Max-pooling of [..., h, w] without overlap: the largest entry of each window, and its number in the window."""
    if _by_sample(x):
        y, which = pool(x.transpose(1, 2), kernel)
        return y.transpose(1, 2), which.transpose(1, 2)
    x, (h, w) = x.contiguous(), x.shape[-2:]
    shape = (*x.shape[:-2], h // kernel[0], w // kernel[1])
    y = blank(x, *shape)
    which = blank(x, *shape, dtype=torch.uint8)
    total = y.numel()
    _pool[pieces(total, BLOCK),](
        x, y, which, total, h, w, *shape[-2:], *kernel, x.numel() >= WIDE_FROM, BLOCK, num_warps=WARPS
    )
    return y, which


def unpool(d: Tensor, which: Tensor, kernel: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The gradient of `pool`'s input, of the given size (h, w), from the gradient of its output."""
    if _by_sample(which):
        return unpool(d.transpose(1, 2), which.transpose(1, 2), kernel, size).transpose(1, 2)
    dx = blank(d, *d.shape[:-2], *size)
    total = dx.numel()
    _unpool[pieces(total, BLOCK),](
        d.contiguous(), which, dx, total, *size, *which.shape[-2:], *kernel, total >= WIDE_FROM, BLOCK, num_warps=WARPS
    )
    return dx


def _by_sample(x: Tensor) -> bool:
    """Whether images [c, i, B, h, w] lie in the order [c, B, i, h, w]."""
    return x.dim() == 5 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous()


@jit(do_not_specialize=("key_ptr", "key_s"))
def _drop(
    x_ptr, key_ptr, y_ptr, N, xs_c, xs_0, xs_1, ys_c, ys_0, ys_1, key_s, at_0, at_1, at_2, least, gain,
    INNER: tl.constexpr, L: tl.constexpr,
    GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second, last = n // (INNER * L), n // L % INNER, n % L
    position = first * at_0 + second * at_1 + last * at_2
    z = mixed(position.to(tl.int64) * GOLDEN + tl.load(key_ptr + c * key_s), MIX_1, MIX_2)
    kept = ((z >> 20) & 0x7FFFFFFF) >= least
    x = tl.load(x_ptr + c * xs_c + first * xs_0 + second * xs_1 + last, mask=n < N, other=0.0)
    tl.store(y_ptr + c * ys_c + first * ys_0 + second * ys_1 + last, x * tl.where(kept, gain, 0.0), mask=n < N)


def drop(x: Tensor, key_c: Tensor, p: float, whole_channels: bool) -> Tensor:
    """x * mask with the mask of `dropout.keep_mask`, for x [c, i, B, h, w] or [c, B, i], 0 < p < 1; in x's order."""
    c, N = x.shape[0], x[0].numel()
    if x.dim() == 5:  # addresses count as for a single client: [B, i, h, w], or [B, i] for whole channels
        i, B, L = x.shape[1], x.shape[2], x.shape[3] * x.shape[4]
        at = (1, i, 0) if whole_channels else (L, i * L, 1)
        x = x if x.stride(4) == 1 and x.stride(3) == x.shape[4] else x.contiguous()
        y = blank(x)
        strides = (*x.stride()[:3], *y.stride()[:3])
    else:
        x, B, L, at = x.contiguous(), 1, N, (0, 0, 1)
        y = blank(x)
        strides = (N, 0, 0, N, 0, 0)
    _drop[pieces(N, BLOCK), c](
        x, key_c, y, N, *strides, key_c.stride(0), *at, int(p * 2**31), 1 / (1 - p),
        B, L, _GOLDEN, _MIX_1, _MIX_2, BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return y
