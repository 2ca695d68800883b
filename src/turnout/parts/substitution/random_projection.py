"""Random projections of updates: short rows whose inner products are those of the long ones, nearly.

Shape letters: R rows, P parameters, D columns of the sketch, F folds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.machine.threads import ordered_map
from turnout.rng import rng

_ROWS = 64  # rows folded together, so that they stay in the cache


def sketch(update_RP: Tensor, size: int, seed: int, t: int) -> Tensor:
    """Rows folded to `size` columns: each fold with random signs, turned round by a random amount, and all added up.

    <s_i, s_j> has mean <x_i, x_j> over the signs, and the cosine of two sketches a standard deviation of about
    1 / sqrt(size). Signs are drawn anew for each round, so that errors cancel in a mean over rounds. One pass over the
    rows, without multiplying matrices.

    >>> x_RP = torch.tensor([[3.0, 0.0, 0.0, 4.0]])
    >>> float(sketch(x_RP, 4, seed=0, t=0).norm())  # nothing folded, nothing lost
    5.0
    """
    rows, width = update_RP.shape
    generator = rng(seed, "sketch", t)
    sign_P = torch.randint(0, 2, (width,), generator=generator).mul_(2).sub_(1).to(update_RP)
    turn_F = torch.randint(0, size, (-(-width // size),), generator=generator).tolist()
    sketch_RD = update_RP.new_zeros(rows, size)
    step = _ROWS if update_RP.device.type == "cpu" else max(rows, 1)

    def fold_rows(first: int) -> None:
        x, out = update_RP[first : first + step], sketch_RD[first : first + step]
        for fold, turn in enumerate(turn_F):
            start, end = fold * size, min((fold + 1) * size, width)
            cut = min(start + size - turn, end)
            out[:, turn : turn + cut - start].addcmul_(x[:, start:cut], sign_P[start:cut])
            out[:, : end - cut].addcmul_(x[:, cut:end], sign_P[cut:end])

    for _ in ordered_map(fold_rows, range(0, rows, step)):
        pass
    return sketch_RD
