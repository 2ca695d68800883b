"""Triton kernels for large dense layers on small batches, each client with its own weights.

Their time is that of reading the weights. Forward reads them once. Backward reads each tile once, for the gradient of
the input and the update of the weights, and writes it once: target <- keep * target + scale * dᵀx (where terms are
springs or drifts, each entry with a `keep` of its own and shifts). The functions to call are at the end.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.machine.triton_tools import FAST, blank, jit, pieces, power_of_two, precision, rows_contiguous, splits, tl


@dataclass(frozen=True)
class DenseTile:
    """The tile of weights of one program, and its launch settings."""

    outputs: int  # at most
    inputs: int  # at most
    warps: int
    stages: int


FORWARD = DenseTile(outputs=64, inputs=128, warps=4, stages=3)
BACKWARD = DenseTile(outputs=64, inputs=64, warps=4, stages=2)
SPLIT_FROM = 512  # fewest inputs in a part of forward's sum
SIZE_FROM = 1 << 16  # fewest weights of a client for which the kernels are faster
BATCH_TO = 32  # largest batch for which they are


def pays(x: Tensor, W: Tensor) -> bool:
    """Whether these kernels are faster for this layer: large weights, a small batch."""
    return x.shape[1] <= BATCH_TO and W.shape[1] * W.shape[2] >= SIZE_FROM


def streams(x: Tensor, W: Tensor) -> bool:
    """Whether `forward` is: on the tensor cores. In full float32 torch's own product is arithmetic and not reading."""
    return pays(x, W) and precision() == FAST


@jit(do_not_specialize=("clients",))
def _forward(
    x_ptr, w_ptr, y_ptr, B, O, I, stretch, clients, xs_c, xs_b, ws_c,  # noqa: E741
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    part, c = tl.program_id(0), tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    b = tl.arange(0, BLOCK_B)
    x_at = x_ptr + c * xs_c + (b * xs_b)[:, None]
    w_at = w_ptr + c * ws_c + (o * I)[:, None]
    total = tl.zeros((BLOCK_O, BLOCK_B), tl.float32)
    for start in range(part * stretch, tl.minimum((part + 1) * stretch, I), BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        w = tl.load(w_at + i[None, :], mask=(o < O)[:, None] & (i < I)[None, :], other=0.0)
        x = tl.load(x_at + i[None, :], mask=(b < B)[:, None] & (i < I)[None, :], other=0.0)
        total = tl.dot(w, tl.trans(x), total, input_precision=PRECISION)
    y_at = y_ptr + ((part * clients + c) * B + b[None, :]) * O + o[:, None]
    tl.store(y_at, total, mask=(o < O)[:, None] & (b < B)[None, :])


@jit
def _backward(
    d_ptr, x_ptr, w_ptr, t_ptr, dx_ptr, keep_ptr, shift_ptr, own_ptr, B, O, I, keep, scale, ds_c, ds_b, xs_c, xs_b,  # noqa: E741
    ws_c, ts_c, os_c, INPUT: tl.constexpr, SAME: tl.constexpr, FRESH: tl.constexpr, SPRING: tl.constexpr,
    OWN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    c = tl.program_id(1).to(tl.int64)
    b = tl.arange(0, BLOCK_B)
    x = tl.load(x_ptr + c * xs_c + b[:, None] * xs_b + i[None, :], mask=(b < B)[:, None] & (i < I)[None, :], other=0.0)
    total = tl.zeros((BLOCK_B, BLOCK_I), tl.float32)
    for start in range(0, O, BLOCK_O):
        o = start + tl.arange(0, BLOCK_O)
        tile = o[:, None] * I + i[None, :]
        real = (o < O)[:, None] & (i < I)[None, :]
        d = tl.load(
            d_ptr + c * ds_c + b[:, None] * ds_b + o[None, :], mask=(b < B)[:, None] & (o < O)[None, :], other=0.0
        )
        g = scale * tl.dot(tl.trans(d), x, input_precision=PRECISION)
        if INPUT or (SAME and not FRESH):
            w = tl.load(w_ptr + c * ws_c + tile, mask=real, other=0.0)
            if INPUT:
                total = tl.dot(d, w, total, input_precision=PRECISION)
            if SPRING:
                g += tl.load(keep_ptr + tile, mask=real, other=0.0) * w + tl.load(
                    shift_ptr + tile, mask=real, other=0.0
                )
                if OWN:
                    g += tl.load(own_ptr + c * os_c + tile, mask=real, other=0.0)
            elif SAME and not FRESH:
                g += keep * w
        if not SAME and not FRESH:
            g += keep * tl.load(t_ptr + c * ts_c + tile, mask=real, other=0.0)
        tl.store(t_ptr + c * ts_c + tile, g, mask=real)
    if INPUT:
        dx_at = dx_ptr + (c * B + b[:, None]) * I + i[None, :]
        tl.store(dx_at, total, mask=(b < B)[:, None] & (i < I)[None, :])


def forward(x: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b of x [c, B, i] with W [c, o, i] -> [c, B, o]."""
    (c, B, i), o, t, x = x.shape, W.shape[1], FORWARD, rows_contiguous(x)
    block_o, block_i = power_of_two(o, 16, t.outputs), power_of_two(i, 16, t.inputs)
    parts = splits(c * pieces(o, block_o), i, SPLIT_FROM)
    stretch = pieces(pieces(i, parts), block_i) * block_i
    parts = pieces(i, stretch)
    y = blank(x, parts, c, B, o)
    _forward[parts, pieces(o, block_o), c](
        x, W, y, B, o, i, stretch, c, x.stride(0), x.stride(1), W.stride(0),
        precision(), power_of_two(B, 16, BATCH_TO), block_o, block_i, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    total = y[0] if parts == 1 else y.sum(0)
    return total if bias is None else total.add_(bias.unsqueeze(1))


def backward(
    d: Tensor, x: Tensor, W: Tensor, target: Tensor, keep: float, scale: float, need_input: bool,
    spring: tuple[Tensor, Tensor, Tensor | None] | None = None,
) -> Tensor | None:  # fmt: skip
    """target <- keep * target + scale * dᵀx in place; returns the gradient of x [c, B, i] if it is needed.

    The target is W itself or does not overlap it; the gradient of x uses W as it was before. `spring`: for the weights
    themselves, entry by entry instead of `keep`: W <- keep_oi W + shift_oi + own_coi + scale * dᵀx.
    """
    kept, shift, own = spring or (W, W, None)
    (c, B, i), o, t = x.shape, W.shape[1], BACKWARD
    d, x = rows_contiguous(d), rows_contiguous(x)
    dx = blank(x, c, B, i) if need_input else None
    block_o, block_i = power_of_two(o, 16, t.outputs), power_of_two(i, 16, t.inputs)
    _backward[pieces(i, block_i), c](
        d, x, W, target, x if dx is None else dx, kept, shift, W if own is None else own, B, o, i, keep, scale,
        d.stride(0), d.stride(1), x.stride(0), x.stride(1), W.stride(0), target.stride(0),
        0 if own is None else own.stride(0), need_input, W.data_ptr() == target.data_ptr(), keep == 0,
        spring is not None, own is not None, precision(),
        power_of_two(B, 16, BATCH_TO), block_o, block_i, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return dx
