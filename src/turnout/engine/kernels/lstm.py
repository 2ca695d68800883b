"""Triton kernels for the LSTM of many clients: all positions of a client in one kernel (recurrence.py explains how).

Shape letters: c clients, T positions, B batch, H hidden size, G = 4 H gates, A = H or more: a power of two.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turnout.engine.kernels import recurrence as shared
from turnout.engine.kernels.recurrence import Launch, product, tanh, unit_of, whose
from turnout.machine.triton_tools import jit, pieces, power_of_two, rows_contiguous, tl

FORWARD, BACKWARD = Launch(warps=16, stages=5), Launch(warps=16, stages=6)
UNITS = 16  # of the state, read at once


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
def _forward(
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
    A = power_of_two(H, 32, shared.HIDDEN_TO)
    w = torch.empty(c, A, 4 * A, dtype=torch.float16, device=U.device)
    unit = torch.empty(c, 4 * A, dtype=torch.float32, device=U.device)
    _turn[c, 4 * A // shared.ROWS](U, w, unit, U.stride(0), U.stride(1), H, A, shared.ROWS, num_warps=4)
    return w, unit


def forward(a: Tensor, U: Tensor, b: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """h and c [c, B, T, H] after every position, and the four gates [c, B, T, G].

    From a [c, B, T, G], U [c, G, H], b [c, G] and the results of the first position.
    """
    (clients, B, T, G), H, a, b = a.shape, U.shape[2], shared.near(a), rows_contiguous(b)
    w, unit = turned(U)
    hs, cs, kept = (a.new_empty(clients, B, T, width) for width in (H, H, G))
    for every, one in zip((hs, cs, kept), first, strict=True):
        every[:, :, 0] = one
    A = w.shape[1]
    state = a.new_empty(clients * pieces(B, shared.SAMPLES), shared.SAMPLES, A)
    _forward[(len(state),)](
        a, w, unit, b, hs, cs, kept, state, T, B, *a.stride()[:3], b.stride(0),
        H, A, shared.SAMPLES, UNITS, FORWARD.stages, num_warps=FORWARD.warps_for(A),
    )  # fmt: skip
    return hs, cs, kept


def backward(dhs: Tensor, dcs: Tensor | None, U: Tensor, c: Tensor, cs: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a and of U h + b, which are the same [c, B, T, G], and of the first h and c [c, B, H]."""
    clients, B, T, H = dhs.shape
    w, unit = shared.rounded(U)
    dhs, c, cs, kept = shared.near(dhs), c.contiguous(), cs.contiguous(), kept.contiguous()
    cell = dhs if dcs is None else shared.near(dcs)
    da, dh, dc = torch.empty_like(kept), torch.empty_like(c), torch.empty_like(c)
    half = w.new_empty(clients * pieces(B, shared.SAMPLES), shared.SAMPLES, unit.shape[1])
    _backward[(len(half),)](
        dhs, cell, w, unit, c, cs, kept, da, half, dh, dc, T, B, *dhs.stride()[:3], *cell.stride()[:3],
        dcs is not None, H, w.shape[2], shared.SAMPLES, min(shared.GATES, w.shape[2]), BACKWARD.stages,
        num_warps=BACKWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return da, da.view_as(da), dh, dc
