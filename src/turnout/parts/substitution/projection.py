"""Random projections of updates: short rows with nearly the same inner products; on a GPU by a Triton kernel.

Shape letters: R rows, P parameters, D columns of the sketch, F folds.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
from torch import Tensor

from turnout.machine.memory import to_device
from turnout.machine.threads import ordered_map
from turnout.machine.triton_tools import jit, mixed, pieces, splits, takes, tl
from turnout.rng import _GOLDEN, _MIX_1, _MIX_2, key, keys, uniform

_ROWS = 64  # rows folded together: they stay in the cache of a CPU
COLUMNS = 256  # of the sketch, per program on a GPU
FOLDS = 8  # read at a time
SPLIT_FROM = 64  # fewest folds in a part of the sum
WARPS = 4


def sketch(update_RP: Tensor, size: int, seed: int, t: int) -> Tensor:
    """Rows folded to `size` columns: each fold with random signs, rotated by a random amount, and summed.

    <s_i, s_j> has mean <x_i, x_j> over the signs, and the cosine of two sketches a standard deviation of about
    1 / sqrt(size). Signs are drawn for each round, so that errors cancel in a mean over rounds. One pass over the rows,
    without matrix products.

    >>> x_RP = torch.tensor([[3.0, 0.0, 0.0, 4.0]])
    >>> float(sketch(x_RP, 4, seed=0, t=0).norm())  # without folding nothing is lost
    5.0
    """
    base, folds = key(seed, "sketch", t), -(-update_RP.shape[1] // size)
    turn_F = (uniform(seed, "turn", t, ids=torch.arange(folds)) * size).long()
    fold = folded_by_kernel if fits(update_RP) else folded
    return fold(update_RP, base, turn_F, size)


def folded(update_RP: Tensor, base: int, turn_F: Tensor, size: int) -> Tensor:
    """Rows folded to `size` columns, with the signs of this key, each fold rotated by `turn_F`."""
    rows, width = update_RP.shape
    sign_P = signs(base, torch.arange(width, device=update_RP.device)).to(update_RP.dtype)
    sketch_RD = update_RP.new_zeros(rows, size)

    def fold_rows(first: int) -> None:
        x, out = update_RP[first : first + _ROWS], sketch_RD[first : first + _ROWS]
        for fold, turn in enumerate(turn_F.tolist()):
            start, end = fold * size, min((fold + 1) * size, width)
            cut = min(start + size - turn, end)
            out[:, turn : turn + cut - start].addcmul_(x[:, start:cut], sign_P[start:cut])
            out[:, : end - cut].addcmul_(x[:, cut:end], sign_P[cut:end])

    list(ordered_map(fold_rows, range(0, rows, _ROWS), threads=1 if update_RP.is_cuda else None))
    return sketch_RD


def signs(base: int, ids: Tensor) -> Tensor:
    """-1 or 1 for each id, on the device of the ids.

    >>> signs(7, torch.arange(6)).tolist()
    [1, -1, 1, -1, 1, -1]
    """
    return 1 - 2 * ((keys(base, ids) >> 62) & 1)


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


def folded_by_kernel(x_RP: Tensor, base: int, turn_F: Tensor, size: int) -> Tensor:
    """What `folded` computes, up to the order of its sums: reads every entry once and draws its sign."""
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
