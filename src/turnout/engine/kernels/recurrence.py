"""Helpers of lstm.py and gru.py, whose Triton kernels do all positions of a client, with TF32's rounding.

The time is that of reading a client's recurrent weights at every position, so they are read as float16, which keeps as
many bits as TF32. Each row is scaled by a power of two such that its largest entry is between 2^13 and 2^14, and so is
what it is multiplied with: entries down to 2^-27 of the largest are rounded as in TF32, smaller ones to 2^-38 of it.

Shape letters: c clients, T positions, B batch, H hidden size, G gates (4 H or 3 H), A = H or more: a power of two.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.machine.triton_tools import FAST, jit, power_of_two, precision, rows_contiguous, tl


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
