"""Triton kernels for convolutions, each client with its own weights; unfolded images are never stored.

Each is a matrix product that gathers one factor from the image as it runs: y[o, n] = Σ_k w[o, k] x[k, n] with
k = (channel, row and column of the kernel) and n = (sample, row and column of the output). The gradient of the input
is the same product with the kernel rotated by 180° and input and output channels exchanged; the gradient of the weights
sums d[o, n] x[k, n] over n. Few outputs are for few_channels.py. The functions to call are at the end.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch, N positions of all images.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.engine.kernels import few_channels
from turnout.engine.kernels.few_channels import own_outputs, patch_corners, store_outputs
from turnout.machine.triton_tools import blank, jit, pieces, power_of_two, precision, splits, tl


@dataclass(frozen=True)
class ConvolutionTile:
    """The tile of one program, and its launch settings."""

    outputs: int  # output channels, at most
    patch: int  # entries of the unfolded patch
    positions: int
    warps: int
    stages: int
    positions_first: bool = False  # the tile transposed: long sides suit the tensor cores where channels are few


PRODUCT = ConvolutionTile(outputs=64, patch=32, positions=128, warps=4, stages=3, positions_first=True)
GRADIENT = ConvolutionTile(outputs=64, patch=64, positions=64, warps=4, stages=3)
SPLIT_FROM = 512  # fewest positions in a part of the weight gradient's sum
BY_PIXEL = ConvolutionTile(outputs=64, patch=64, positions=64, warps=2, stages=2)  # GRADIENT where d lies by pixels


@jit
def _product(
    x_ptr, w_ptr, b_ptr, y_ptr, N, xs_c, xs_i, xs_b, xs_h, xs_w, ws_c, ws_o, ws_i, bs_c, ys_c, ys_o, ys_b, ys_p,
    I: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PAD: tl.constexpr,
    TURNED: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, SWAP: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    n, o, c = own_outputs(BLOCK_N, BLOCK_O)
    image, place, row, column = patch_corners(n, OH, OW, PH, PW, SH, SW)
    x_at = x_ptr + c * xs_c + (image * xs_b + row * xs_h + column * xs_w)[None, :]
    w_at = w_ptr + c * ws_c + (o * ws_o)[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_O), tl.float32) if SWAP else tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for start in range(0, I * KH * KW, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        i, tap = k // (KH * KW), k % (KH * KW)
        down, right = tap // KW, tap % KW
        real = (k < I * KH * KW)[:, None] & (n < N)[None, :]
        if PAD:
            r, q = row[None, :] + down[:, None], column[None, :] + right[:, None]
            real = real & (r >= 0) & (r < H) & (q >= 0) & (q < W)
        x = tl.load(x_at + (i * xs_i + down * xs_h + right * xs_w)[:, None], mask=real, other=0.0)
        if TURNED:
            tap = KH * KW - 1 - tap
        w = tl.load(w_at + (i * ws_i + tap)[None, :], mask=(o < O)[:, None] & (k < I * KH * KW)[None, :], other=0.0)
        if SWAP:
            total = tl.dot(tl.trans(x), tl.trans(w), total, input_precision=PRECISION)
        else:
            total = tl.dot(w, x, total, input_precision=PRECISION)
    if SWAP:
        total = tl.trans(total)
    store_outputs(total, b_ptr, y_ptr, c, o, n, image, place, N, bs_c, ys_c, ys_o, ys_b, ys_p, O, BIAS)


@jit(do_not_specialize=("clients",))
def _weight_gradient(
    x_ptr, d_ptr, g_ptr, N, clients, stretch, xs_c, xs_i, xs_b, xs_h, xs_w, ds_c, ds_o, ds_b, ds_p,
    I: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,  # noqa: E741
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PAD: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = I * KH * KW
    tiles: tl.constexpr = (K + BIAS + BLOCK_K - 1) // BLOCK_K
    k = tl.program_id(0) % tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    o = tl.program_id(0) // tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    first = tl.program_id(1) * stretch
    c = tl.program_id(2).to(tl.int64)
    down, right = k % (KH * KW) // KW, k % KW
    x_at = x_ptr + c * xs_c + (k // (KH * KW) * xs_i + down * xs_h + right * xs_w)[:, None]
    d_at = d_ptr + c * ds_c + (o * ds_o)[:, None]
    total = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    last = tl.minimum(first + stretch, N)
    for start in range(first, last, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        image, place, row, column = patch_corners(n, OH, OW, PH, PW, SH, SW)
        real = (k < K)[:, None] & (n < last)[None, :]
        if PAD:
            r, q = row[None, :] + down[:, None], column[None, :] + right[:, None]
            real = real & (r >= 0) & (r < H) & (q >= 0) & (q < W)
        x = tl.load(x_at + (image * xs_b + row * xs_h + column * xs_w)[None, :], mask=real, other=0.0)
        if BIAS:
            x = tl.where((k == K)[:, None], 1.0, x)
        d_real = (o < O)[:, None] & (n < last)[None, :]
        d = tl.load(d_at + (image * ds_b + place * ds_p)[None, :], mask=d_real, other=0.0)
        total = tl.dot(d, tl.trans(x), total, input_precision=PRECISION)
    g_at = g_ptr + ((tl.program_id(1) * clients + c) * O + o[:, None]) * (K + BIAS) + k[None, :]
    tl.store(g_at, total, mask=(o < O)[:, None] & (k < K + BIAS)[None, :])


Pair = tuple[int, int]
CHANNELS, SAMPLES, PIXELS = "coBhw", "cBohw", "cBhwo"  # the order of a result's dimensions in memory


def convolve(
    x: Tensor, W: Tensor, bias: Tensor | None, padding: Pair, stride: Pair = (1, 1), order: str = CHANNELS
) -> Tensor:
    """Convolution of x [c, i, B, h, w] with W [c, o, i, kh, kw], each client's own -> [c, o, B, oh, ow].

    `order`: of the result in memory, one of the three below `Pair`.
    """
    outer = [(x.shape[3 + k] + 2 * padding[k] - W.shape[3 + k]) // stride[k] + 1 for k in (0, 1)]
    return _convolve(x, W, bias, W.shape[1], padding, (outer[0], outer[1]), stride, False, order)


def input_gradient(
    d: Tensor, W: Tensor, padding: Pair, size: Pair, stride: Pair = (1, 1), order: str = CHANNELS
) -> Tensor:
    """Gradient [c, i, B, h, w] of the input of `convolve`, of size (h, w), from the gradient of its output."""
    (kh, kw), (sh, sw) = W.shape[3:], stride
    if stride != (1, 1):  # as if the output were computed everywhere, with gradients of 0 where it was not
        spread = d.new_zeros(*d.shape[:3], size[0] + 2 * padding[0] - kh + 1, size[1] + 2 * padding[1] - kw + 1)
        spread[..., ::sh, ::sw][..., : d.shape[3], : d.shape[4]] = d
        d = spread
    around = (kh - 1 - padding[0], kw - 1 - padding[1])
    return _convolve(d, W, None, W.shape[2], around, size, (1, 1), True, order)


def _convolve(
    x: Tensor, W: Tensor, bias: Tensor | None, o: int, padding: Pair, size: Pair, stride: Pair, turned: bool,
    order: str,
) -> Tensor:  # fmt: skip
    (c, i, B, h, w), (kh, kw), t = x.shape, W.shape[3:], PRODUCT
    lengths = {"c": c, "o": o, "B": B, "h": size[0], "w": size[1]}
    y = blank(x, *(lengths[d] for d in order))
    y = y.permute([order.index(d) for d in CHANNELS])
    if few_channels.pays(y):
        few_channels.product(x, W.transpose(1, 2) if turned else W, bias, y, padding, stride, turned)
        return y
    N, block = B * size[0] * size[1], power_of_two(o, 16, t.outputs)
    roles = (W.stride(2), W.stride(1)) if turned else (W.stride(1), W.stride(2))
    bs_c = 0 if bias is None else bias.stride(0)
    _product[pieces(N, t.positions), pieces(o, block), c](
        x, W, W if bias is None else bias, y, N, *x.stride(), W.stride(0), *roles, bs_c, *y.stride()[:3], y.stride(4),
        i, h, w, o, *size, kh, kw, *padding, *stride, max(padding) > 0,
        turned, bias is not None, precision(), t.positions_first, block, t.patch, t.positions,
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return y


def bias_is_free(W: Tensor) -> bool:
    """Whether tiles have space for one more column of the weights' gradient, for the bias, at no cost."""
    K = W[0, 0].numel()
    if few_channels.few(W.shape[1]):
        return True
    return power_of_two(K + 1, 16, 1024) == power_of_two(K, 16, 1024) <= GRADIENT.patch


def weight_gradient(
    x: Tensor, d: Tensor, kernel: Pair, padding: Pair, bias: bool, stride: Pair = (1, 1), by_sample: bool = False
) -> Tensor:
    """Gradient of `convolve`'s weights [c, o, K] (with the bias [c, o, K + 1]) from the gradient of its output.

    With `by_sample` each sample's own [B, c, o, K].
    """
    d = d if d.stride(3) == d.shape[4] * d.stride(4) else d.contiguous()
    if few_channels.few(d.shape[1]):
        g = few_channels.weight_gradient(x, d, kernel, padding, bias, stride, by_sample)
        return g if by_sample else g[0] if len(g) == 1 else g.sum(0)
    (c, i, B, h, w), o, t = x.shape, d.shape[1], BY_PIXEL if d.stride(1) == 1 else GRADIENT
    N, K = B * d.shape[3] * d.shape[4], i * kernel[0] * kernel[1] + bias
    block_o, block_k = power_of_two(o, 16, t.outputs), power_of_two(K, 16, t.patch)
    tiles = pieces(o, block_o) * pieces(K, block_k)
    parts = splits(tiles * c, N, SPLIT_FROM)
    stretch = pieces(pieces(N, parts), t.positions) * t.positions
    parts = pieces(N, stretch)
    if by_sample:
        parts, stretch = B, N // B
    g = blank(x, parts, c, o, K)
    _weight_gradient[tiles, parts, c](
        x, d, g, N, c, stretch, *x.stride(), *d.stride()[:3], d.stride(4),
        i, h, w, o, d.shape[3], d.shape[4], *kernel, *padding, *stride, max(padding) > 0,
        int(bias), precision(), block_o, block_k, t.positions, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return g if by_sample else g[0] if parts == 1 else g.sum(0)
