"""Triton kernels for the LSTM and the GRU of many clients: all positions of a client in one, with TF32's rounding.

The time is that of reading a client's recurrent weights at every position, so they are read as float16, which keeps as
many bits as TF32. Each row is scaled by a power of two such that its largest entry is between 2^13 and 2^14, and so is
what it is multiplied with: entries down to 2^-27 of the largest are rounded as in TF32, smaller ones to 2^-38 of it.

Shape letters: c clients, T positions, B batch, H hidden size, G gates (4 H or 3 H), A = H or more: a power of two.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from turnout.machine.triton_tools import FAST, jit, pieces, power_of_two, precision, rows_contiguous, tl


@dataclass(frozen=True)
class Launch:
    """The launch settings of a kernel: warps for the largest hidden size, and stages."""

    warps: int
    stages: int

    def warps_for(self, A: int) -> int:
        return max(4, self.warps * A // HIDDEN_TO)


HIDDEN_TO = 256  # a client's state is in registers as a whole
BATCH_TO = 32  # from there on, weights are used often enough once they are read
SAMPLES = 16  # of a program, the fewest a product takes
UNITS = 32  # read at once, forward
GATES = 64  # backward
ROWS = 32  # of weights that a program rounds
MOST_KEPT = 5  # numbers of each unit of the state that backward needs, of a GRU
NEAR = 1 << 31  # numbers of a client that a kernel finds by a short address


def fits(samples: int, positions: int, U: Tensor) -> bool:
    """Whether these kernels take a client's weights U [G, H] and such a batch: by shape and precision alone."""
    kept = samples * positions * U.shape[-1] * MOST_KEPT
    small = samples <= BATCH_TO and U.shape[-1] <= HIDDEN_TO and kept < NEAR
    return small and samples * positions > 0 and precision() == FAST


@jit
def unit_of(most):
    """The power of two by which numbers up to `most` are divided."""
    whole = (tl.maximum(most, 2.0**-100).to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return whole * 2.0**-13


@jit
def tanh(x):
    """Exact near 0 as well, where 2 sigmoid(2x) - 1 is not."""
    s = x * x
    near = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.25, near, 2 * tl.sigmoid(2 * x) - 1)


@jit
def whose(B, BLOCK_B: tl.constexpr):
    """The client and the samples of a program; a client's programs are neighbours."""
    blocks = tl.cdiv(B, BLOCK_B)
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * BLOCK_B + tl.arange(0, BLOCK_B)


@jit
def product(
    x_at, w_at, K: tl.constexpr, N: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """The product of rows [B, K] with a client's weights [K, N]."""
    n = tl.arange(0, N)
    total = tl.zeros((BLOCK_B, N), tl.float32)
    for start in tl.range(0, K, BLOCK, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK)
        total = tl.dot(tl.load(x_at + k[None, :]).to(tl.float16), tl.load(w_at + k[:, None] * N + n[None, :]), total)
    return total


@jit
def _round(u_ptr, w_ptr, unit_ptr, us_c, us_g, G: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ROWS: tl.constexpr):
    c = tl.program_id(0).to(tl.int64)
    row, k = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, A)
    real = (row % A < H)[:, None] & (k < H)[None, :]
    u = tl.load(u_ptr + c * us_c + ((row // A * H + row % A) * us_g)[:, None] + k[None, :], mask=real, other=0.0)
    unit = unit_of(tl.max(tl.abs(u), 1))
    tl.store(w_ptr + (c * G + row)[:, None] * A + k[None, :], (u * (1 / unit)[:, None]).to(tl.float16))
    tl.store(unit_ptr + c * G + row, unit)


def near(x: Tensor) -> Tensor:
    """The tensor itself if short addresses reach all numbers of a client and rows are contiguous, else a copy."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape[1:], x.stride()[1:], strict=True))
    return rows_contiguous(x) if reach < NEAR else x.contiguous()


def rounded(U: Tensor) -> tuple[Tensor, Tensor]:
    """U [c, G, H] as float16, each gate [A, A] and zero beyond H, and the factor of each row."""
    (c, G, H), U = U.shape, rows_contiguous(U)
    A = power_of_two(H, UNITS, HIDDEN_TO)
    w = torch.empty(c, G // H * A, A, dtype=torch.float16, device=U.device)
    unit = torch.empty(c, G // H * A, dtype=torch.float32, device=U.device)
    _round[c, w.shape[1] // ROWS](U, w, unit, U.stride(0), U.stride(1), w.shape[1], H, A, ROWS, num_warps=4)
    return w, unit


LSTM_FORWARD, LSTM_BACKWARD = Launch(warps=16, stages=5), Launch(warps=16, stages=6)
LSTM_UNITS = 16  # of the state, read at once


@jit
def _turn(u_ptr, w_ptr, unit_ptr, us_c, us_g, H: tl.constexpr, A: tl.constexpr, ROWS: tl.constexpr):
    """As `rounded`, but [A, 4 A]: transposed, the four gates of a unit side by side."""
    c = tl.program_id(0).to(tl.int64)
    row, k = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, A)
    real = (row // 4 < H)[:, None] & (k < H)[None, :]
    u = tl.load(u_ptr + c * us_c + ((row % 4 * H + row // 4) * us_g)[:, None] + k[None, :], mask=real, other=0.0)
    unit = unit_of(tl.max(tl.abs(u), 1))
    turned = tl.trans((u * (1 / unit)[:, None]).to(tl.float16))
    tl.store(w_ptr + (c * A + k)[:, None] * (4 * A) + row[None, :], turned)
    tl.store(unit_ptr + c * (4 * A) + row % 4 * A + row // 4, unit * 2.0**-14)


@jit
def _gates(total, A: tl.constexpr, BLOCK_B: tl.constexpr):
    """The four gates [B, A] of products [B, 4 A]."""
    even, odd = tl.split(tl.reshape(total, (BLOCK_B, A, 2, 2)))
    i, g = tl.split(even)
    f, o = tl.split(odd)
    return i, f, g, o


@jit
def _lstm_forward(
    a_ptr, w_ptr, unit_ptr, b_ptr, h_ptr, c_ptr, kept_ptr, state_ptr, T, B, as_c, as_b, as_t, bs_c,
    H: tl.constexpr, A: tl.constexpr, BLOCK_B: tl.constexpr, UNITS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    c, b = whose(B, BLOCK_B)
    k = tl.arange(0, A)
    there, real = k < H, (b < B)[:, None] & (k < H)[None, :]
    a_ptr, w_at, unit_at, b_at = (
        a_ptr + c * as_c,
        w_ptr + c * (4 * A * A),
        unit_ptr + c * (4 * A) + k,
        b_ptr + c * bs_c + k,
    )
    h_ptr, c_ptr, kept_ptr = h_ptr + c * B * T * H, c_ptr + c * B * T * H, kept_ptr + c * B * T * (4 * H)
    state_at = state_ptr + tl.program_id(0).to(tl.int64) * (BLOCK_B * A) + tl.arange(0, BLOCK_B)[:, None] * A
    h = tl.load(h_ptr + ((b * T)[:, None] * H + k[None, :]), mask=real, other=0.0)
    cell = tl.load(c_ptr + ((b * T)[:, None] * H + k[None, :]), mask=real, other=0.0)
    for t in range(1, T):
        tl.store(state_at + k[None, :], h * 2.0**14)
        tl.debug_barrier()  # what follows reads what other threads wrote
        a_at = a_ptr + ((b * as_b)[:, None] + t * as_t + k[None, :])
        a_i, a_f = tl.load(a_at, mask=real, other=0.0), tl.load(a_at + H, mask=real, other=0.0)
        a_g, a_o = tl.load(a_at + 2 * H, mask=real, other=0.0), tl.load(a_at + 3 * H, mask=real, other=0.0)
        u_i, u_f, u_g, u_o = _gates(product(state_at, w_at, A, 4 * A, BLOCK_B, UNITS, STAGES), A, BLOCK_B)
        a_i += tl.load(b_at, mask=there, other=0.0)[None, :] + u_i * tl.load(unit_at)[None, :]
        a_f += tl.load(b_at + H, mask=there, other=0.0)[None, :] + u_f * tl.load(unit_at + A)[None, :]
        a_g += tl.load(b_at + 2 * H, mask=there, other=0.0)[None, :] + u_g * tl.load(unit_at + 2 * A)[None, :]
        a_o += tl.load(b_at + 3 * H, mask=there, other=0.0)[None, :] + u_o * tl.load(unit_at + 3 * A)[None, :]
        i, f, g, o = tl.sigmoid(a_i), tl.sigmoid(a_f), tanh(a_g), tl.sigmoid(a_o)
        cell = f * cell + i * g
        h = o * tanh(cell)
        place = (b * T + t)[:, None]
        tl.store(c_ptr + (place * H + k[None, :]), cell, mask=real)
        tl.store(h_ptr + (place * H + k[None, :]), h, mask=real)
        kept = kept_ptr + (place * (4 * H) + k[None, :])
        tl.store(kept, i, mask=real)
        tl.store(kept + H, f, mask=real)
        tl.store(kept + 2 * H, g, mask=real)
        tl.store(kept + 3 * H, o, mask=real)


@jit
def _lstm_backward(
    dh_ptr, dc_ptr, w_ptr, unit_ptr, before_ptr, c_ptr, kept_ptr, da_ptr, half_ptr, dh0_ptr, dc0_ptr, T, B,
    hs_c, hs_b, hs_t, cs_c, cs_b, cs_t,
    CELL: tl.constexpr, H: tl.constexpr, A: tl.constexpr, BLOCK_B: tl.constexpr, GATES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    c, b = whose(B, BLOCK_B)
    k = tl.arange(0, A)
    real = (b < B)[:, None] & (k < H)[None, :]
    kept_ptr, da_ptr, c_ptr = kept_ptr + c * B * T * (4 * H), da_ptr + c * B * T * (4 * H), c_ptr + c * B * T * H
    dh_ptr, dc_ptr, state = dh_ptr + c * hs_c, dc_ptr + c * cs_c, c * B * H
    w_at, unit_at = w_ptr + c * (4 * A * A), unit_ptr + c * (4 * A) + k
    half_ptr += tl.program_id(0).to(tl.int64) * (BLOCK_B * 4 * A)
    half_at, at = half_ptr + tl.arange(0, BLOCK_B)[:, None] * (4 * A), b[:, None] * H + k[None, :]
    dc = tl.zeros((BLOCK_B, A), tl.float32)
    place = (b * T + T - 1)[:, None]
    kept_at = kept_ptr + (place * (4 * H) + k[None, :])
    i, f = tl.load(kept_at, mask=real, other=0.0), tl.load(kept_at + H, mask=real, other=0.0)
    g, o = tl.load(kept_at + 2 * H, mask=real, other=0.0), tl.load(kept_at + 3 * H, mask=real, other=0.0)
    now = tl.load(c_ptr + (place * H + k[None, :]), mask=real, other=0.0)
    dh = tl.load(dh_ptr + ((b * hs_b)[:, None] + (T - 1) * hs_t + k[None, :]), mask=real, other=0.0)
    for gone in range(T):
        t = T - 1 - gone
        place = (b * T + t)[:, None]
        before = tl.load(c_ptr + ((place - 1) * H + k[None, :]), mask=real & (t > 0), other=0.0)
        before += tl.load(before_ptr + state + at, mask=real & (t == 0), other=0.0)
        dh += tl.load(dh0_ptr + state + at, mask=real & (gone > 0), other=0.0)
        squashed = tanh(now)
        if CELL:
            dc += tl.load(dc_ptr + ((b * cs_b)[:, None] + t * cs_t + k[None, :]), mask=real, other=0.0)
        dc += dh * o * (1 - squashed * squashed)
        d_i, d_f = dc * g * i * (1 - i), dc * before * f * (1 - f)
        d_g, d_o = dc * i * (1 - g * g), dh * squashed * o * (1 - o)
        dc = dc * f
        da_at = da_ptr + (place * (4 * H) + k[None, :])
        tl.store(da_at, d_i, mask=real)
        tl.store(da_at + H, d_f, mask=real)
        tl.store(da_at + 2 * H, d_g, mask=real)
        tl.store(da_at + 3 * H, d_o, mask=real)
        d_i, d_f = d_i * tl.load(unit_at)[None, :], d_f * tl.load(unit_at + A)[None, :]
        d_g, d_o = d_g * tl.load(unit_at + 2 * A)[None, :], d_o * tl.load(unit_at + 3 * A)[None, :]
        most = tl.maximum(tl.maximum(tl.abs(d_i), tl.abs(d_f)), tl.maximum(tl.abs(d_g), tl.abs(d_o)))
        unit = unit_of(tl.max(most, 1))[:, None]
        tl.store(half_at + k[None, :], (d_i * (1 / unit)).to(tl.float16))
        tl.store(half_at + A + k[None, :], (d_f * (1 / unit)).to(tl.float16))
        tl.store(half_at + 2 * A + k[None, :], (d_g * (1 / unit)).to(tl.float16))
        tl.store(half_at + 3 * A + k[None, :], (d_o * (1 / unit)).to(tl.float16))
        tl.debug_barrier()  # what follows reads what other threads wrote
        earlier, now = real & (t > 0), before  # asked for now, needed after the product
        kept_at = kept_ptr + ((place - 1) * (4 * H) + k[None, :])
        i, f = tl.load(kept_at, mask=earlier, other=0.0), tl.load(kept_at + H, mask=earlier, other=0.0)
        g, o = tl.load(kept_at + 2 * H, mask=earlier, other=0.0), tl.load(kept_at + 3 * H, mask=earlier, other=0.0)
        dh = tl.load(dh_ptr + ((b * hs_b)[:, None] + (t - 1) * hs_t + k[None, :]), mask=earlier, other=0.0)
        total = product(half_at, w_at, 4 * A, A, BLOCK_B, GATES, STAGES)
        tl.store(dh0_ptr + state + at, total * unit, mask=real)
        tl.debug_barrier()
    tl.store(dc0_ptr + state + at, dc, mask=real)


def turned(U: Tensor) -> tuple[Tensor, Tensor]:
    """U [c, G, H] as float16 [c, A, 4 A], transposed, and the factor of each gate [c, 4 A]."""
    (c, _, H), U = U.shape, rows_contiguous(U)
    A = power_of_two(H, 32, HIDDEN_TO)
    w = torch.empty(c, A, 4 * A, dtype=torch.float16, device=U.device)
    unit = torch.empty(c, 4 * A, dtype=torch.float32, device=U.device)
    _turn[c, 4 * A // ROWS](U, w, unit, U.stride(0), U.stride(1), H, A, ROWS, num_warps=4)
    return w, unit


def lstm_forward(a: Tensor, U: Tensor, b: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """h and c [c, B, T, H] after every position, and the four gates [c, B, T, G].

    From a [c, B, T, G], U [c, G, H], b [c, G] and the results of the first position.
    """
    (clients, B, T, G), H, a, b = a.shape, U.shape[2], near(a), rows_contiguous(b)
    w, unit = turned(U)
    hs, cs, kept = (a.new_empty(clients, B, T, width) for width in (H, H, G))
    for every, one in zip((hs, cs, kept), first, strict=True):
        every[:, :, 0] = one
    A = w.shape[1]
    state = a.new_empty(clients * pieces(B, SAMPLES), SAMPLES, A)
    _lstm_forward[(len(state),)](
        a, w, unit, b, hs, cs, kept, state, T, B, *a.stride()[:3], b.stride(0),
        H, A, SAMPLES, LSTM_UNITS, LSTM_FORWARD.stages, num_warps=LSTM_FORWARD.warps_for(A),
    )  # fmt: skip
    return hs, cs, kept


def lstm_backward(
    dhs: Tensor, dcs: Tensor | None, U: Tensor, c: Tensor, cs: Tensor, kept: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of a and of U h + b, which are the same [c, B, T, G], and of the first h and c [c, B, H]."""
    clients, B, T, H = dhs.shape
    w, unit = rounded(U)
    dhs, c, cs, kept = near(dhs), c.contiguous(), cs.contiguous(), kept.contiguous()
    cell = dhs if dcs is None else near(dcs)
    da, dh, dc = torch.empty_like(kept), torch.empty_like(c), torch.empty_like(c)
    half = w.new_empty(clients * pieces(B, SAMPLES), SAMPLES, unit.shape[1])
    _lstm_backward[(len(half),)](
        dhs, cell, w, unit, c, cs, kept, da, half, dh, dc, T, B, *dhs.stride()[:3], *cell.stride()[:3],
        dcs is not None, H, w.shape[2], SAMPLES, min(GATES, w.shape[2]), LSTM_BACKWARD.stages,
        num_warps=LSTM_BACKWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return da, da.view_as(da), dh, dc


GRU_FORWARD, GRU_BACKWARD = Launch(warps=4, stages=3), Launch(warps=16, stages=4)


@jit
def _gru_forward(
    a_ptr, w_ptr, unit_ptr, b_ptr, h_ptr, kept_ptr, T, B, as_c, as_b, as_t, bs_c,
    H: tl.constexpr, A: tl.constexpr, BLOCK_B: tl.constexpr, UNITS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    c, b = whose(B, BLOCK_B)
    k = tl.arange(0, A)
    a_ptr, w_ptr, unit_ptr, b_ptr = a_ptr + c * as_c, w_ptr + c * (3 * A * A), unit_ptr + c * (3 * A), b_ptr + c * bs_c
    h_ptr, kept_ptr = h_ptr + c * B * T * H, kept_ptr + c * B * T * (5 * H)
    for t in range(1, T):
        before = (b * T + t - 1)[:, None]
        h = tl.load(h_ptr + (before * H + k[None, :]), mask=(b < B)[:, None] & (k < H)[None, :], other=0.0)
        size = unit_of(tl.max(tl.abs(h), 1))[:, None]
        h = (h * (1 / size)).to(tl.float16)
        for start in tl.range(0, H, UNITS, num_stages=STAGES):
            j = start + tl.arange(0, UNITS)
            there = j < H
            real = (b < B)[:, None] & there[None, :]
            at = before * H + j[None, :]
            a, bias, unit = a_ptr + ((b * as_b)[:, None] + t * as_t + j[None, :]), b_ptr + j, unit_ptr + j
            w = w_ptr + (j[:, None] * A + k[None, :])
            u_r, u_z = tl.dot(h, tl.trans(tl.load(w))), tl.dot(h, tl.trans(tl.load(w + A * A)))
            u_n = tl.dot(h, tl.trans(tl.load(w + 2 * A * A)))
            u_r = u_r * size * tl.load(unit)[None, :] + tl.load(bias, mask=there, other=0.0)[None, :]
            u_z = u_z * size * tl.load(unit + A)[None, :] + tl.load(bias + H, mask=there, other=0.0)[None, :]
            u_n = u_n * size * tl.load(unit + 2 * A)[None, :] + tl.load(bias + 2 * H, mask=there, other=0.0)[None, :]
            r = tl.sigmoid(tl.load(a, mask=real, other=0.0) + u_r)
            z = tl.sigmoid(tl.load(a + H, mask=real, other=0.0) + u_z)
            n = tanh(tl.load(a + 2 * H, mask=real, other=0.0) + r * u_n)
            earlier = tl.load(h_ptr + at, mask=real, other=0.0)
            tl.store(h_ptr + (at + H), n + z * (earlier - n), mask=real)
            kept = kept_ptr + ((before + 1) * (5 * H) + j[None, :])
            tl.store(kept, r, mask=real)
            tl.store(kept + H, z, mask=real)
            tl.store(kept + 2 * H, n, mask=real)
            tl.store(kept + 3 * H, u_n, mask=real)
            tl.store(kept + 4 * H, earlier, mask=real)
        tl.debug_barrier()  # the next position reads what other threads wrote


@jit
def _gru_backward(
    dh_ptr, w_ptr, unit_ptr, kept_ptr, da_ptr, du_ptr, half_ptr, dh0_ptr, T, B, hs_c, hs_b, hs_t,
    H: tl.constexpr, A: tl.constexpr, BLOCK_B: tl.constexpr, GATES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    c, b = whose(B, BLOCK_B)
    k = tl.arange(0, A)
    real = (b < B)[:, None] & (k < H)[None, :]
    kept_ptr, da_ptr, du_ptr = (
        kept_ptr + c * B * T * (5 * H),
        da_ptr + c * B * T * (3 * H),
        du_ptr + c * B * T * (3 * H),
    )
    dh_ptr, state = dh_ptr + c * hs_c, c * B * H
    w_at, unit_at = w_ptr + c * (3 * A * A), unit_ptr + c * (3 * A) + k
    half_ptr += tl.program_id(0).to(tl.int64) * (BLOCK_B * 3 * A)
    half_at, at = half_ptr + tl.arange(0, BLOCK_B)[:, None] * (3 * A), b[:, None] * H + k[None, :]
    direct = tl.zeros((BLOCK_B, A), tl.float32)
    for gone in range(T):
        place = (b * T + (T - 1 - gone))[:, None]
        kept_at = kept_ptr + (place * (5 * H) + k[None, :])
        r, z = tl.load(kept_at, mask=real, other=0.0), tl.load(kept_at + H, mask=real, other=0.0)
        n, u_n = tl.load(kept_at + 2 * H, mask=real, other=0.0), tl.load(kept_at + 3 * H, mask=real, other=0.0)
        dh = direct + tl.load(dh0_ptr + state + at, mask=real & (gone > 0), other=0.0)
        dh += tl.load(dh_ptr + ((b * hs_b)[:, None] + (T - 1 - gone) * hs_t + k[None, :]), mask=real, other=0.0)
        direct = dh * z
        d_z = dh * (tl.load(kept_at + 4 * H, mask=real, other=0.0) - n) * z * (1 - z)
        d_n = dh * (1 - z) * (1 - n * n)
        d_r = d_n * u_n * r * (1 - r)
        da_at, du_at = da_ptr + (place * (3 * H) + k[None, :]), du_ptr + (place * (3 * H) + k[None, :])
        tl.store(da_at, d_r, mask=real)
        tl.store(da_at + H, d_z, mask=real)
        tl.store(da_at + 2 * H, d_n, mask=real)
        d_n = d_n * r
        tl.store(du_at, d_r, mask=real)
        tl.store(du_at + H, d_z, mask=real)
        tl.store(du_at + 2 * H, d_n, mask=real)
        d_r, d_z = d_r * tl.load(unit_at)[None, :], d_z * tl.load(unit_at + A)[None, :]
        d_n = d_n * tl.load(unit_at + 2 * A)[None, :]
        unit = unit_of(tl.max(tl.maximum(tl.maximum(tl.abs(d_r), tl.abs(d_z)), tl.abs(d_n)), 1))[:, None]
        tl.store(half_at + k[None, :], (d_r * (1 / unit)).to(tl.float16))
        tl.store(half_at + A + k[None, :], (d_z * (1 / unit)).to(tl.float16))
        tl.store(half_at + 2 * A + k[None, :], (d_n * (1 / unit)).to(tl.float16))
        tl.debug_barrier()  # what follows reads what other threads wrote
        dh = product(half_at, w_at, 3 * A, A, BLOCK_B, GATES, STAGES)
        tl.store(dh0_ptr + state + at, dh * unit, mask=real)
        tl.debug_barrier()
    dh = direct + tl.load(dh0_ptr + state + at, mask=real, other=0.0)
    tl.store(dh0_ptr + state + at, dh, mask=real)


def gru_forward(a: Tensor, U: Tensor, b: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """h [c, B, T, H] after every position, an empty tensor in place of an LSTM's cells, and backward's numbers.

    From a [c, B, T, G], U [c, G, H], b [c, G] and the results of the first position.
    """
    (clients, B, T, _), H, a, b = a.shape, U.shape[2], near(a), rows_contiguous(b)
    w, unit = rounded(U)
    hs, cs, kept = (a.new_empty(clients, B, T, width) for width in (H, 0, 5 * H))
    hs[:, :, 0], kept[:, :, 0] = first[0], first[2]
    _gru_forward[(clients * pieces(B, SAMPLES),)](
        a, w, unit, b, hs, kept, T, B, *a.stride()[:3], b.stride(0),
        H, w.shape[2], SAMPLES, UNITS, GRU_FORWARD.stages, num_warps=GRU_FORWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return hs, cs, kept


def gru_backward(dhs: Tensor, _: Tensor | None, U: Tensor, c: Tensor, cs: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a and of U h + b [c, B, T, G], of the first h [c, B, H], and zeros for the cells."""
    clients, B, T, H = dhs.shape
    w, unit = rounded(U)
    dhs, kept = near(dhs), kept.contiguous()
    da, du, dh = (dhs.new_empty(clients, B, *shape) for shape in ((T, 3 * H), (T, 3 * H), (H,)))
    half = w.new_empty(clients * pieces(B, SAMPLES), SAMPLES, unit.shape[1])
    _gru_backward[(clients * pieces(B, SAMPLES),)](
        dhs, w, unit, kept, da, du, half, dh, T, B, *dhs.stride()[:3],
        H, w.shape[2], SAMPLES, min(GATES, w.shape[2]), GRU_BACKWARD.stages,
        num_warps=GRU_BACKWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return da, du, dh, torch.zeros_like(c)


class RecurrentKernels(NamedTuple):
    """All positions of a layer, forward and backward."""

    forward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, ...]]


KERNELS = {
    "lstm": RecurrentKernels(lstm_forward, lstm_backward),
    "gru": RecurrentKernels(gru_forward, gru_backward),
}
