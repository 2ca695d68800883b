"""A Triton kernel for random projections: reads every entry once and draws its sign with the integers of `rng.keys`.
Computes `random_projection.sketch`, up to the order of its sums.

Shape letters: R rows, P parameters, D columns of the sketch, F folds.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
from torch import Tensor

from turnout.machine.memory import to_device
from turnout.machine.triton_tools import jit, mixed, pieces, splits, takes, tl
from turnout.rng import _GOLDEN, _MIX_1, _MIX_2

COLUMNS = 256  # of the sketch, per program
FOLDS = 8  # read at a time
SPLIT_FROM = 64  # fewest folds in a part of the sum
WARPS = 4


@jit
def _fold(
    x_ptr, base_ptr, turn_ptr, out_ptr, P, F, D, stretch, xs_r,
    GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr, COLUMNS: tl.constexpr, FOLDS: tl.constexpr,
):  # fmt: skip
    d, r = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1).to(tl.int64)
    part, base = tl.program_id(2), tl.load(base_ptr)
    total = tl.zeros((FOLDS, COLUMNS), tl.float32)
    last = tl.minimum(part * stretch + stretch, F)
    for first in range(part * stretch, last, FOLDS):
        f = first + tl.arange(0, FOLDS)
        from_d = d[None, :] - tl.load(turn_ptr + f, mask=f < last, other=0).to(tl.int32)[:, None]
        p = f[:, None] * D + tl.where(from_d < 0, from_d + D, from_d)
        real = (f < last)[:, None] & (d < D)[None, :] & (p < P)
        x = tl.load(x_ptr + r * xs_r + p, mask=real, other=0.0)
        z = mixed(p.to(tl.int64) * GOLDEN + base, MIX_1, MIX_2)
        total += tl.where(((z >> 62) & 1) == 1, -x, x)
    tl.store(out_ptr + (part * tl.num_programs(1) + r) * D + d, tl.sum(total, 0), mask=d < D)


def fits(x_RP: Tensor) -> bool:
    """Whether the kernel works for such rows."""
    return takes(x_RP) and 0 < len(x_RP) < 1 << 16 and x_RP.shape[1] > 0


def folded(x_RP: Tensor, base: int, turn_F: Tensor, size: int) -> Tensor:
    """Rows folded to `size` columns, with the signs of this key, each fold rotated by `turn_F`."""
    (rows, width), folds, blocks = x_RP.shape, len(turn_F), pieces(size, COLUMNS)
    drawn_F = to_device(torch.cat([torch.tensor([base]), turn_F]), x_RP.device)
    stretch = pieces(pieces(folds, splits(blocks * rows, folds, SPLIT_FROM, wanted=2112)), FOLDS) * FOLDS
    parts = pieces(folds, stretch)
    out = x_RP.new_empty(parts, rows, size)
    _fold[blocks, rows, parts](
        x_RP, drawn_F, drawn_F[1:], out, width, folds, size, stretch, x_RP.stride(0),
        _GOLDEN, _MIX_1, _MIX_2, COLUMNS, FOLDS, num_warps=WARPS,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0)
