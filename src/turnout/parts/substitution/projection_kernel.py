"""A Triton kernel for random projections: every entry of the rows is read once. What is computed is
`random_projection.sketch`, up to the order of its sums.

Shape letters: R rows, P parameters, D columns of the sketch, F folds.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from torch import Tensor

from turnout.machine.triton_tools import jit, pieces, splits, takes, tl

COLUMNS = 256  # of the sketch, per program
FOLDS = 8  # read at a time
SPLIT_FROM = 64  # fewest folds in a part of the sum
WARPS = 4


@jit
def _fold(
    x_ptr, sign_ptr, turn_ptr, out_ptr, P, F, D, stretch, xs_r, COLUMNS: tl.constexpr, FOLDS: tl.constexpr
):  # fmt: skip
    d, r = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    total = tl.zeros((FOLDS, COLUMNS), tl.float32)
    last = tl.minimum(part * stretch + stretch, F)
    for first in range(part * stretch, last, FOLDS):
        f = first + tl.arange(0, FOLDS)
        from_d = d[None, :] - tl.load(turn_ptr + f, mask=f < last, other=0)[:, None]
        p = f[:, None] * D + tl.where(from_d < 0, from_d + D, from_d)
        real = (f < last)[:, None] & (d < D)[None, :] & (p < P)
        x = tl.load(x_ptr + r * xs_r + p, mask=real, other=0.0)
        total += x * tl.load(sign_ptr + p, mask=real, other=0.0)
    tl.store(out_ptr + (part * tl.num_programs(1) + r) * D + d, tl.sum(total, 0), mask=d < D)


def fits(x_RP: Tensor) -> bool:
    """Whether the kernel works for such rows."""
    return takes(x_RP) and 0 < len(x_RP) < 1 << 16


def folded(x_RP: Tensor, sign_P: Tensor, turn_F: Tensor, size: int) -> Tensor:
    """Rows folded to `size` columns, each fold with these signs and turned round by so much (int32)."""
    (rows, width), folds, blocks = x_RP.shape, len(turn_F), pieces(size, COLUMNS)
    stretch = pieces(pieces(folds, splits(blocks * rows, folds, SPLIT_FROM, wanted=2112)), FOLDS) * FOLDS
    parts = pieces(folds, stretch)
    out = x_RP.new_empty(parts, rows, size)
    _fold[blocks, rows, parts](
        x_RP, sign_P, turn_F, out, width, folds, size, stretch, x_RP.stride(0), COLUMNS, FOLDS, num_warps=WARPS
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0)
