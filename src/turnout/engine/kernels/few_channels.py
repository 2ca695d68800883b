"""Triton kernels for convolutions with few output channels in full float32, each client with its own weights.

A matrix product would pad so few channels to 16. Here each thread has some positions and all outputs of them; in the
gradient of the weights it sums over its positions, for a row of the kernel at a time. convolution.py decides by `few`
and `pays`, and shares the first three kernels. The tile of a product changes none of its sums.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, T entries of the kernel, N positions of all images.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.machine.triton_tools import EXACT, blank, jit, pieces, power_of_two, precision, splits, tl

Pair = tuple[int, int]


@dataclass(frozen=True)
class FewTile:
    """The tile of one program, and its launch settings."""

    outputs: int  # at most
    each: int  # positions of a thread
    warps: int


MANY = 1 << 18  # positions of all clients from which a thread has twice as many
PRODUCT, PRODUCT_OF_MANY = FewTile(16, 2, 4), FewTile(16, 4, 4)
GRADIENT = FewTile(16, 1, 4)
SPLIT_FROM = 1024  # fewest positions in a part of the weight gradient's sum


def few(outputs: int) -> bool:
    """Whether outputs are so few that the gradient of the weights is faster here; then pictures lie by sample."""
    return outputs <= 16 and precision() == EXACT


def pays(y: Tensor) -> bool:
    """Whether `product` is faster for a result y [c, o, B, oh, ow] (`python benchmarks/gpu_kernels.py`)."""
    most = 32 if y.numel() >= MANY * y.shape[1] else 8
    return y.shape[1] <= most and y.stride(4) == 1 and precision() == EXACT


@jit
def patch_corners(
    n, OH: tl.constexpr, OW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr
):  # fmt: skip
    """Of positions: image, place in it, and the row and column of the input at which the patch begins."""
    place = n % (OH * OW)
    return n // (OH * OW), place, place // OW * SH - PH, place % OW * SW - PW


@jit
def own_outputs(BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr):
    """A program's positions, outputs and client."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    return n, tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O), tl.program_id(2).to(tl.int64)


@jit
def store_outputs(
    total, b_ptr, y_ptr, c, o, n, image, place, N, bs_c, ys_c, ys_o, ys_b, ys_p, O: tl.constexpr, BIAS: tl.constexpr  # noqa: E741
):  # fmt: skip
    """Write a tile [o, n] of results, with the bias added."""
    if BIAS:
        total += tl.load(b_ptr + c * bs_c + o, mask=o < O, other=0.0)[:, None]
    y_at = y_ptr + c * ys_c + o[:, None] * ys_o + (image * ys_b + place * ys_p)[None, :]
    tl.store(y_at, total, mask=(o < O)[:, None] & (n < N)[None, :])


@jit
def _product(
    x_ptr, w_ptr, b_ptr, y_ptr, N, xs_c, xs_i, xs_b, xs_h, xs_w, bs_c, ys_c, ys_o, ys_b, ys_p,
    I: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PAD: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
    ACROSS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    n, o, c = own_outputs(BLOCK_N, BLOCK_O)
    image, place, row, column = patch_corners(n, OH, OW, PH, PW, SH, SW)
    x_at = x_ptr + c * xs_c + (image * xs_b + row * xs_h + column * xs_w)
    w_at = w_ptr + c * (I * KH * KW * ACROSS) + o
    total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for i in range(I):
        for tap in tl.static_range(KH * KW):
            down, right = tap // KW, tap % KW
            real = n < N
            if PAD:
                real = real & (row + down >= 0) & (row + down < H) & (column + right >= 0) & (column + right < W)
            x = tl.load(x_at + (i * xs_i + down * xs_h + right * xs_w), mask=real, other=0.0)
            entry = KH * KW - 1 - tap if TURNED else tap
            w = tl.load(w_at + (i * (KH * KW) + entry) * ACROSS)
            total += w[:, None] * x[None, :]
    store_outputs(total, b_ptr, y_ptr, c, o, n, image, place, N, bs_c, ys_c, ys_o, ys_b, ys_p, O, BIAS)


@jit(do_not_specialize=("clients",))
def _weight_gradient(
    x_ptr, d_ptr, g_ptr, N, clients, stretch, xs_c, xs_i, xs_b, xs_h, xs_w, ds_c, ds_o, ds_b, ds_p,
    I: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PAD: tl.constexpr, BIAS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = I * KH * KW
    i, part, c = tl.program_id(0) % I, tl.program_id(1), tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) // I * BLOCK_O + tl.arange(0, BLOCK_O)
    x_at = x_ptr + c * xs_c + i * xs_i
    d_at = d_ptr + c * ds_c + (o * ds_o)[:, None]
    g_at = g_ptr + ((part * clients + c) * O + o) * (K + BIAS)
    first, last = part * stretch, tl.minimum(part * stretch + stretch, N)
    for down in range(KH):
        totals = ()
        for _ in tl.static_range(KW):
            totals = totals + (tl.zeros((BLOCK_O, BLOCK_N), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
        for start in range(first, last, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            image, place, row, column = patch_corners(n, OH, OW, PH, PW, SH, SW)
            row, real = row + down, n < last
            d = tl.load(d_at + (image * ds_b + place * ds_p)[None, :], mask=(o < O)[:, None] & real[None, :], other=0.0)
            if PAD:
                real = real & (row >= 0) & (row < H)
            sums = ()
            for right in tl.static_range(KW):
                inside = real
                if PAD:
                    inside = real & (column + right >= 0) & (column + right < W)
                x = tl.load(x_at + (image * xs_b + row * xs_h + (column + right) * xs_w), mask=inside, other=0.0)
                sums = sums + (totals[right] + d * x[None, :],)  # type: ignore[assignment]  # noqa: RUF005
            totals = sums
        for right in tl.static_range(KW):
            tl.store(g_at + (i * (KH * KW) + down * KW + right), tl.sum(totals[right], 1), mask=o < O)
    if BIAS:  # noqa: SIM102 (known when it is compiled)
        if i == 0:
            total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
            for start in range(first, last, BLOCK_N):
                n = start + tl.arange(0, BLOCK_N)
                at = d_at + (n // (OH * OW) * ds_b + n % (OH * OW) * ds_p)[None, :]
                total += tl.load(at, mask=(o < O)[:, None] & (n < last)[None, :], other=0.0)
            tl.store(g_at + K, tl.sum(total, 1), mask=o < O)


def product(
    x: Tensor, W: Tensor, bias: Tensor | None, y: Tensor, padding: Pair, stride: Pair, turned: bool,
    tile: FewTile | None = None,
) -> None:  # fmt: skip
    """Convolution of x [c, i, B, h, w] with W [c, o, i, kh, kw], `turned` by 180°, into y [c, o, B, oh, ow]."""
    (c, i, _, h, w), (o, B, oh, ow), kernel = x.shape, y.shape[1:], W.shape[3:]
    N = B * oh * ow
    t = tile or (PRODUCT_OF_MANY if c * N >= MANY else PRODUCT)
    block, size = power_of_two(o, 4, t.outputs), 32 * t.warps * t.each
    groups = pieces(o, block)
    w_iTo = blank(x, c, i, kernel[0] * kernel[1], groups * block)
    w_iTo[..., :o].copy_(W.flatten(3).permute(0, 2, 3, 1))
    bs_c = 0 if bias is None else bias.stride(0)
    _product[pieces(N, size), groups, c](
        x, w_iTo, W if bias is None else bias, y, N, *x.stride(), bs_c, *y.stride()[:3], y.stride(4),
        i, h, w, o, oh, ow, *kernel, *padding, *stride, max(padding) > 0,
        turned, bias is not None, groups * block, block, size, num_warps=t.warps,
    )  # fmt: skip


def weight_gradient(
    x: Tensor, d: Tensor, kernel: Pair, padding: Pair, bias: bool, stride: Pair, by_sample: bool,
    tile: FewTile = GRADIENT, least: int = SPLIT_FROM,
) -> Tensor:  # fmt: skip
    """Parts [p, c, o, K] (with the bias K + 1) of the gradient of the weights; with `by_sample` one for each sample."""
    (c, i, B, h, w), (o, _, oh, ow) = x.shape, d.shape[1:]
    N, K = B * oh * ow, i * kernel[0] * kernel[1] + bias
    block, size = power_of_two(o, 4, tile.outputs), 32 * tile.warps * tile.each
    programs = i * pieces(o, block)
    stretch = pieces(pieces(N, splits(programs * c, N, least, wanted=1056)), size) * size
    stretch = oh * ow if by_sample else stretch
    g = blank(x, pieces(N, stretch), c, o, K)
    _weight_gradient[programs, len(g), c](
        x, d, g, N, c, stretch, *x.stride(), *d.stride()[:3], d.stride(4),
        i, h, w, o, oh, ow, *kernel, *padding, *stride, max(padding) > 0, int(bias), block, size,
        num_warps=tile.warps,
    )  # fmt: skip
    return g
