"""Triton kernels for the LSTM of many clients: all positions of a client in one kernel (gpu/recurrence.py says how).

Shape letters: c clients, T positions, B batch, H hidden size, G = 4 H gates, A = H or more: a power of two.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turnout.engine.gpu.recurrence import GATES, SAMPLES, UNITS, Launch, near, product, rounded, tanh, unit_of, whose
from turnout.machine.triton_tools import jit, pieces, rows_contiguous, tl

FORWARD, BACKWARD = Launch(warps=4, stages=3), Launch(warps=16, stages=4)


@jit
def _gate(u, a_at, unit_at, b_at, real, there):
    """a + b + U h of some units, where u is U h in other units."""
    a = tl.load(a_at, mask=real, other=0.0) + tl.load(b_at, mask=there, other=0.0)[None, :]
    return a + u * (tl.load(unit_at) * 2.0**-14)[None, :]


@jit
def _forward(
    a_ptr, w_ptr, unit_ptr, b_ptr, h_ptr, c_ptr, kept_ptr, T, B, as_c, as_b, as_t, bs_c,
    H: tl.constexpr, A: tl.constexpr, BLOCK_B: tl.constexpr, UNITS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    c, b = whose(B, BLOCK_B)
    k = tl.arange(0, A)
    a_ptr, w_ptr, unit_ptr, b_ptr = a_ptr + c * as_c, w_ptr + c * (4 * A * A), unit_ptr + c * (4 * A), b_ptr + c * bs_c
    h_ptr, c_ptr, kept_ptr = h_ptr + c * B * T * H, c_ptr + c * B * T * H, kept_ptr + c * B * T * (4 * H)
    for t in range(1, T):
        before = (b * T + t - 1)[:, None]
        h = tl.load(h_ptr + (before * H + k[None, :]), mask=(b < B)[:, None] & (k < H)[None, :], other=0.0)
        h = (h * 2.0**14).to(tl.float16)
        for start in tl.range(0, H, UNITS, num_stages=STAGES):
            j = start + tl.arange(0, UNITS)
            there = j < H
            real = (b < B)[:, None] & there[None, :]
            at = before * H + j[None, :]
            a, bias, unit = a_ptr + ((b * as_b)[:, None] + t * as_t + j[None, :]), b_ptr + j, unit_ptr + j
            w = w_ptr + (j[:, None] * A + k[None, :])
            u_i, u_f = tl.dot(h, tl.trans(tl.load(w))), tl.dot(h, tl.trans(tl.load(w + A * A)))
            u_g, u_o = tl.dot(h, tl.trans(tl.load(w + 2 * A * A))), tl.dot(h, tl.trans(tl.load(w + 3 * A * A)))
            i = tl.sigmoid(_gate(u_i, a, unit, bias, real, there))
            f = tl.sigmoid(_gate(u_f, a + H, unit + A, bias + H, real, there))
            g = tanh(_gate(u_g, a + 2 * H, unit + 2 * A, bias + 2 * H, real, there))
            o = tl.sigmoid(_gate(u_o, a + 3 * H, unit + 3 * A, bias + 3 * H, real, there))
            cell = f * tl.load(c_ptr + at, mask=real, other=0.0) + i * g
            tl.store(c_ptr + (at + H), cell, mask=real)
            tl.store(h_ptr + (at + H), o * tanh(cell), mask=real)
            kept = kept_ptr + ((before + 1) * (4 * H) + j[None, :])
            tl.store(kept, i, mask=real)
            tl.store(kept + H, f, mask=real)
            tl.store(kept + 2 * H, g, mask=real)
            tl.store(kept + 3 * H, o, mask=real)
        tl.debug_barrier()  # the next position reads what other threads wrote


@jit
def _backward(
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
    for gone in range(T):
        t = T - 1 - gone
        place = (b * T + t)[:, None]
        kept_at, c_at = kept_ptr + (place * (4 * H) + k[None, :]), c_ptr + (place * H + k[None, :])
        i, f = tl.load(kept_at, mask=real, other=0.0), tl.load(kept_at + H, mask=real, other=0.0)
        g, o = tl.load(kept_at + 2 * H, mask=real, other=0.0), tl.load(kept_at + 3 * H, mask=real, other=0.0)
        squashed = tanh(tl.load(c_at, mask=real, other=0.0))
        before = tl.load(c_at - H, mask=real & (t > 0), other=0.0)
        before += tl.load(before_ptr + state + at, mask=real & (t == 0), other=0.0)
        dh = tl.load(dh0_ptr + state + at, mask=real & (gone > 0), other=0.0)
        dh += tl.load(dh_ptr + ((b * hs_b)[:, None] + t * hs_t + k[None, :]), mask=real, other=0.0)
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
        dh = product(half_at, w_at, 4 * A, A, BLOCK_B, GATES, STAGES)
        tl.store(dh0_ptr + state + at, dh * unit, mask=real)
        tl.debug_barrier()
    tl.store(dc0_ptr + state + at, dc, mask=real)


def forward(a: Tensor, U: Tensor, b: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """h and c [c, B, T, H] after every position, and the four gates [c, B, T, G].

    From a [c, B, T, G], U [c, G, H], b [c, G] and what is wanted of the first position.
    """
    (clients, B, T, G), H, a, b = a.shape, U.shape[2], near(a), rows_contiguous(b)
    w, unit = rounded(U)
    hs, cs, kept = (a.new_empty(clients, B, T, width) for width in (H, H, G))
    for every, one in zip((hs, cs, kept), first, strict=True):
        every[:, :, 0] = one
    _forward[(clients * pieces(B, SAMPLES),)](
        a, w, unit, b, hs, cs, kept, T, B, *a.stride()[:3], b.stride(0),
        H, w.shape[2], SAMPLES, UNITS, FORWARD.stages, num_warps=FORWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return hs, cs, kept


def backward(dhs: Tensor, dcs: Tensor | None, U: Tensor, c: Tensor, cs: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a and of U h + b, which are the same [c, B, T, G], and of the first h and c [c, B, H]."""
    clients, B, T, H = dhs.shape
    w, unit = rounded(U)
    dhs, c, cs, kept = near(dhs), c.contiguous(), cs.contiguous(), kept.contiguous()
    cell = dhs if dcs is None else near(dcs)
    da, dh, dc = torch.empty_like(kept), torch.empty_like(c), torch.empty_like(c)
    half = w.new_empty(clients * pieces(B, SAMPLES), SAMPLES, unit.shape[1])
    _backward[(clients * pieces(B, SAMPLES),)](
        dhs, cell, w, unit, c, cs, kept, da, half, dh, dc, T, B, *dhs.stride()[:3], *cell.stride()[:3],
        dcs is not None, H, w.shape[2], SAMPLES, GATES, BACKWARD.stages, num_warps=BACKWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return da, da.view_as(da), dh, dc
