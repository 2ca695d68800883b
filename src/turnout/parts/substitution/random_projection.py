"""Random projections of updates: short rows with nearly the same inner products.

Shape letters: R rows, P parameters, D columns of the sketch, F folds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.machine.memory import to_device
from turnout.machine.threads import ordered_map
from turnout.parts.substitution import projection_kernel
from turnout.rng import key, keys, uniform

_ROWS = 64  # rows folded together: they stay in the cache of a CPU, and their copy on a GPU stays small


def sketch(update_RP: Tensor, size: int, seed: int, t: int) -> Tensor:
    """Rows folded to `size` columns: each fold with random signs, rotated by a random amount, and summed.

    <s_i, s_j> has mean <x_i, x_j> over the signs, and the cosine of two sketches a standard deviation of about
    1 / sqrt(size). Signs are drawn for each round, so that errors cancel in a mean over rounds. One pass over the rows,
    without matrix products.

    >>> x_RP = torch.tensor([[3.0, 0.0, 0.0, 4.0]])
    >>> float(sketch(x_RP, 4, seed=0, t=0).norm())  # without folding nothing is lost
    5.0
    """
    rows, width = update_RP.shape
    base, folds = key(seed, "sketch", t), -(-width // size)
    turn_F = (uniform(seed, "turn", t, ids=torch.arange(folds)) * size).long()
    if projection_kernel.fits(update_RP):
        return projection_kernel.folded(update_RP, base, turn_F, size)
    sign_P = signs(base, torch.arange(width, device=update_RP.device)).to(update_RP.dtype)
    if update_RP.device.type != "cpu":
        return folded_at_once(update_RP, sign_P, turn_F, size)
    sketch_RD = update_RP.new_zeros(rows, size)

    def fold_rows(first: int) -> None:
        x, out = update_RP[first : first + _ROWS], sketch_RD[first : first + _ROWS]
        for fold, turn in enumerate(turn_F.tolist()):
            start, end = fold * size, min((fold + 1) * size, width)
            cut = min(start + size - turn, end)
            out[:, turn : turn + cut - start].addcmul_(x[:, start:cut], sign_P[start:cut])
            out[:, : end - cut].addcmul_(x[:, cut:end], sign_P[cut:end])

    for _ in ordered_map(fold_rows, range(0, rows, _ROWS)):
        pass
    return sketch_RD


def signs(base: int, ids: Tensor) -> Tensor:
    """-1 or 1 for each id, on the device of the ids.

    >>> signs(7, torch.arange(6)).tolist()
    [1, -1, 1, -1, 1, -1]
    """
    return 1 - 2 * ((keys(base, ids) >> 62) & 1)


def folded_at_once(update_RP: Tensor, sign_P: Tensor, turn_F: Tensor, size: int) -> Tensor:
    """The same as one gather and one sum: on a GPU a fold at a time would be a thousand launches."""
    rows, width = update_RP.shape
    folds, device = len(turn_F), update_RP.device
    from_FD = (torch.arange(size, device=device) - to_device(turn_F, device)[:, None]) % size
    sketch_RD = update_RP.new_empty(rows, size)
    for first in range(0, rows, _ROWS):
        signed = torch.nn.functional.pad(update_RP[first : first + _ROWS] * sign_P, (0, folds * size - width))
        turned = signed.view(-1, folds, size).gather(2, from_FD.expand(len(signed), -1, -1))
        sketch_RD[first : first + _ROWS] = turned.sum(1)
    return sketch_RD
