"""Triton kernels for convolutions of pictures that lie in memory pixel by pixel: all channels of a pixel side by side.

Tensors are [c, i, B, h, w] as everywhere, in the order [c, B, h, w, i] in memory ("channels-last"). So a tile of some
positions and some channels is read in rows of neighbours, for one entry of the kernel after another, and nothing is
divided on the way. Step 1, channels in multiples of 16; convolution.py has the kernels for everything else. The
functions to call are at the end.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, T entries of the kernel, N positions of all images.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.machine.triton_tools import EXACT, FAST, blank, jit, pieces, power_of_two, precision, splits, tl

Pair = tuple[int, int]


@dataclass(frozen=True)
class PixelTile:
    """The tile of one program, and its launch settings."""

    positions: int
    channels: int  # of the input that are multiplied at once, at most
    warps: int
    stages: int


PRODUCT = PixelTile(positions=128, channels=32, warps=4, stages=3)
GRADIENT = {  # here channels: entries of the kernel times channels; in float32 a thread keeps its factors in registers
    FAST: PixelTile(positions=64, channels=64, warps=2, stages=2),
    EXACT: PixelTile(positions=16, channels=64, warps=4, stages=2),
}
SPLIT_FROM = 512  # fewest positions in a part of the weight gradient's sum


@jit
def _product(
    x_ptr, w_ptr, b_ptr, y_ptr, N, xs_c, ws_c, bs_c, ys_c,
    I: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    PAD: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = KH * KW
    goes: tl.constexpr = I // BLOCK_I
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    c = tl.program_id(2).to(tl.int64)
    i = tl.arange(0, BLOCK_I)
    row, column = n // OW % OH - PH, n % OW - PW
    x_at = x_ptr + c * xs_c + ((n // (OH * OW) * H + row) * W + column)[:, None] * I + i[None, :]
    w_at = w_ptr + c * ws_c + o[None, :] * (T * I) + i[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_O), tl.float32)
    for step in range(T * goes):
        tap, first = step // goes, step % goes * BLOCK_I
        down, right = tap // KW, tap % KW
        real = n < N
        if PAD:
            r, q = row + down, column + right
            real = real & (r >= 0) & (r < H) & (q >= 0) & (q < W)
        x = tl.load(x_at + ((down * W + right) * I + first), mask=real[:, None], other=0.0)
        if TURNED:
            tap = T - 1 - tap
        w = tl.load(w_at + (tap * I + first), mask=(o < O)[None, :], other=0.0)
        total = tl.dot(x, w, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(b_ptr + c * bs_c + o, mask=o < O, other=0.0)[None, :]
    tl.store(y_ptr + c * ys_c + n[:, None] * O + o[None, :], total, mask=(n < N)[:, None] & (o < O)[None, :])


@jit(do_not_specialize=("clients",))
def _weight_gradient(
    x_ptr, d_ptr, g_ptr, N, clients, stretch, xs_c, ds_c,
    I: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    PAD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = KH * KW * I
    tiles: tl.constexpr = (K + BLOCK_K) // BLOCK_K  # one column more: the bias
    k = tl.program_id(0) % tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    o = tl.program_id(0) // tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    part, c = tl.program_id(1), tl.program_id(2).to(tl.int64)
    down, right = k // I // KW, k // I % KW
    x_at = x_ptr + c * xs_c + ((down * W + right) * I + k % I)[None, :]
    d_at = d_ptr + c * ds_c + o[None, :]
    total = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    last = tl.minimum(part * stretch + stretch, N)
    for start in range(part * stretch, last, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        row, column = n // OW % OH - PH, n % OW - PW
        real = (n < last)[:, None] & (k < K)[None, :]
        if PAD:
            r, q = row[:, None] + down[None, :], column[:, None] + right[None, :]
            real = real & (r >= 0) & (r < H) & (q >= 0) & (q < W)
        x = tl.load(x_at + (((n // (OH * OW) * H + row) * W + column) * I)[:, None], mask=real, other=0.0)
        x = tl.where((k == K)[None, :], 1.0, x)
        d = tl.load(d_at + (n * O)[:, None], mask=(n < last)[:, None] & (o < O)[None, :], other=0.0)
        total = tl.dot(tl.trans(d), x, total, input_precision=PRECISION)
    g_at = g_ptr + ((part * clients + c) * O + o[:, None]) * (K + 1) + k[None, :]
    tl.store(g_at, total, mask=(o < O)[:, None] & (k <= K)[None, :])


def fits(channels: int) -> bool:
    """Whether these kernels work for so many channels."""
    return channels % 16 == 0


def pays(W: Tensor) -> bool:
    return fits(W.shape[1]) and fits(W.shape[2])


def by_pixel(x: Tensor) -> Tensor:
    """The same [c, i, B, h, w] with all channels of a pixel side by side; a copy only if they are not."""
    flat = x.permute(0, 2, 3, 4, 1)
    return flat.contiguous().permute(0, 4, 1, 2, 3)


def convolve(x: Tensor, W: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """Convolution of x [c, i, B, h, w] with W [c, o, i, kh, kw], each client's own -> [c, o, B, oh, ow]."""
    size = tuple(x.shape[3 + k] + 2 * padding[k] - W.shape[3 + k] + 1 for k in (0, 1))
    return _convolve(x, W.permute(0, 1, 3, 4, 2).contiguous(), bias, padding, (size[0], size[1]), turned=False)


def input_gradient(d: Tensor, W: Tensor, padding: Pair, size: Pair) -> Tensor:
    """Gradient [c, i, B, h, w] of the input of `convolve`, of size (h, w), from the gradient of its output."""
    around = (W.shape[3] - 1 - padding[0], W.shape[4] - 1 - padding[1])
    return _convolve(d, W.permute(0, 2, 3, 4, 1).contiguous(), None, around, size, turned=True)


def _convolve(x: Tensor, W: Tensor, bias: Tensor | None, padding: Pair, size: Pair, turned: bool) -> Tensor:
    """With W as [c, o, kh, kw, i]; `turned` by 180°."""
    x, t = by_pixel(x), PRODUCT
    (c, i, B, h, w), o, kernel = x.shape, W.shape[1], W.shape[2:4]
    y = blank(x, c, B, *size, o)
    N, block = B * size[0] * size[1], power_of_two(o, 16, 128)
    bs_c = 0 if bias is None else bias.stride(0)  # below, i & -i is the largest power of two that divides i
    _product[pieces(N, t.positions), pieces(o, block), c](
        x, W, W if bias is None else bias, y, N, x.stride(0), W.stride(0), bs_c, y.stride(0),
        i, h, w, o, *size, *kernel, *padding, max(padding) > 0, turned, bias is not None, precision(),
        t.positions, block, min(i & -i, t.channels), num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return y.permute(0, 4, 1, 2, 3)


def weight_gradient(x: Tensor, d: Tensor, kernel: Pair, padding: Pair, squared: bool = False) -> tuple[Tensor, Tensor]:
    """Gradients of `convolve`'s weights [c, o, i, kh, kw] and bias [c, o] from the gradient of its output.

    `squared`: the sum over samples of the squares of each one's own.
    """
    x, d, t = by_pixel(x), by_pixel(d), GRADIENT[precision()]
    (c, i, B, h, w), (o, _, oh, ow) = x.shape, d.shape[1:]
    N, K = B * oh * ow, i * kernel[0] * kernel[1]
    block_o, block_k = power_of_two(o, 16, 64), power_of_two(K + 1, 16, t.channels)
    tiles = pieces(o, block_o) * pieces(K + 1, block_k)
    stretch = pieces(pieces(N, splits(tiles * c, N, SPLIT_FROM)), t.positions) * t.positions
    stretch = oh * ow if squared else stretch
    parts = pieces(N, stretch)
    g = blank(x, parts, c, o, K + 1)
    _weight_gradient[tiles, parts, c](
        x, d, g, N, c, stretch, x.stride(0), d.stride(0),
        i, h, w, o, oh, ow, *kernel, *padding, max(padding) > 0, precision(),
        t.positions, block_o, block_k, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    total = (g.square_() if squared else g).sum(0) if parts > 1 or squared else g[0]
    return total[..., :K].unflatten(2, (*kernel, i)).permute(0, 1, 4, 2, 3), total[..., K]
