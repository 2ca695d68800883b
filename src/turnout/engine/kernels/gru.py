"""Triton kernels for the GRU of many clients: all positions of a client in one kernel (recurrence.py explains how).

Shape letters: c clients, T positions, B batch, H hidden size, G = 3 H gates, A = H or more: a power of two.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turnout.engine.kernels import recurrence as shared
from turnout.engine.kernels.recurrence import Launch, product, tanh, unit_of, whose
from turnout.machine.triton_tools import jit, pieces, rows_contiguous, tl

FORWARD, BACKWARD = Launch(warps=4, stages=3), Launch(warps=16, stages=4)


@jit
def _forward(
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
def _backward(
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


def forward(a: Tensor, U: Tensor, b: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """h [c, B, T, H] after every position, an empty tensor in place of an LSTM's cells, and backward's numbers.

    From a [c, B, T, G], U [c, G, H], b [c, G] and the results of the first position.
    """
    (clients, B, T, _), H, a, b = a.shape, U.shape[2], shared.near(a), rows_contiguous(b)
    w, unit = shared.rounded(U)
    hs, cs, kept = (a.new_empty(clients, B, T, width) for width in (H, 0, 5 * H))
    hs[:, :, 0], kept[:, :, 0] = first[0], first[2]
    _forward[(clients * pieces(B, shared.SAMPLES),)](
        a, w, unit, b, hs, kept, T, B, *a.stride()[:3], b.stride(0),
        H, w.shape[2], shared.SAMPLES, shared.UNITS, FORWARD.stages, num_warps=FORWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return hs, cs, kept


def backward(dhs: Tensor, _: Tensor | None, U: Tensor, c: Tensor, cs: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a and of U h + b [c, B, T, G], of the first h [c, B, H], and zeros for the cells."""
    clients, B, T, H = dhs.shape
    w, unit = shared.rounded(U)
    dhs, kept = shared.near(dhs), kept.contiguous()
    da, du, dh = (dhs.new_empty(clients, B, *shape) for shape in ((T, 3 * H), (T, 3 * H), (H,)))
    half = w.new_empty(clients * pieces(B, shared.SAMPLES), shared.SAMPLES, unit.shape[1])
    _backward[(clients * pieces(B, shared.SAMPLES),)](
        dhs, w, unit, kept, da, du, half, dh, T, B, *dhs.stride()[:3],
        H, w.shape[2], shared.SAMPLES, min(shared.GATES, w.shape[2]), BACKWARD.stages,
        num_warps=BACKWARD.warps_for(w.shape[2]),
    )  # fmt: skip
    return da, du, dh, torch.zeros_like(c)
