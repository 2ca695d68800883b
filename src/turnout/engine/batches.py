"""Mini-batches in an addressed order: which rows of the pool each client sees at each local step.

A client's order of epoch e in round t is the sort of hash(seed, t, client, e, sample), so it is the same whichever
clients share its chunk. Batches never cross an epoch's end; the last one of an epoch may be short.

Shape letters: c clients of a block, J steps, B batch size, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.rng import key, keys
from turnout.types import Samples

_CPU_WINDOW, _GPU_WINDOW = 4 << 20, 256 << 20  # bytes of samples gathered at once


def steps_per_epoch(count_C: Tensor, batch_size: int, drop_single: bool) -> Tensor:
    """How many mini-batches one pass makes; a last batch of one sample is dropped where batch statistics need two.

    >>> steps_per_epoch(torch.tensor([40, 41, 1]), 20, drop_single=True)
    tensor([2, 2, 0])
    """
    full = count_C // batch_size
    rest = count_C % batch_size
    return full + (rest > (1 if drop_single else 0)).long()


@dataclass(frozen=True)
class Batches:
    """Row numbers for a block of clients, all steps at once; -1 fills what a short batch leaves empty."""

    row_cJB: Tensor
    size_cJ: Tensor


def address_batches(
    samples: Samples, client_c: Tensor, steps_c: Tensor, batch_size: int, drop_single: bool, seed: int, t: int
) -> Batches:
    """Lay out the batches of a block of clients, in the samples' order, each for its own number of steps."""
    count_c, start_c = samples.count_C, samples.start_C
    per_epoch_c = steps_per_epoch(count_c, batch_size, drop_single).clamp(min=1)
    epochs_c = torch.where(steps_c > 0, (steps_c - 1) // per_epoch_c + 1, torch.zeros_like(steps_c))
    longest = int(steps_c.max()) if steps_c.numel() else 0
    row_cJB = torch.full((len(client_c), longest, batch_size), -1, dtype=torch.int64)
    client_key_c = keys(key(seed, "batches", t), client_c)
    for epoch in range(int(epochs_c.max()) if epochs_c.numel() else 0):
        here = (epochs_c > epoch).nonzero().squeeze(1)
        owner_R = here.repeat_interleave(count_c[here])
        sample_R = torch.arange(len(owner_R)) - (count_c[here].cumsum(0) - count_c[here]).repeat_interleave(
            count_c[here]
        )
        hash_R = keys(keys(client_key_c, torch.tensor(epoch))[owner_R], sample_R)
        # one flat sort: the client in the top bits, the hash below it
        order_R = torch.sort((owner_R << 44) | ((hash_R >> 20) & (2**44 - 1)), stable=True).indices
        step_R = epoch * per_epoch_c[owner_R] + sample_R // batch_size  # owners stay contiguous after the sort
        kept = (sample_R // batch_size < per_epoch_c[owner_R]) & (step_R < steps_c[owner_R])
        rows_R = samples.row_R[start_c[owner_R] + sample_R[order_R]]
        row_cJB[owner_R[kept], step_R[kept], (sample_R % batch_size)[kept]] = rows_R[kept]
    return Batches(row_cJB, (row_cJB >= 0).sum(2))


class Feed:
    """The samples of a chunk of clients, step by step; gathered from the pool a few steps at a time."""

    def __init__(self, samples: Samples, batches: Batches, dtype: torch.dtype):
        self.samples, self.batches, self.dtype = samples, batches, dtype
        longest_J = batches.size_cJ.max(0).values
        self.width_J: list[int] = longest_J.tolist()
        short_cJ = (batches.size_cJ < longest_J) & (batches.size_cJ > 0)
        self.short_J: list[bool] = short_cJ.any(0).tolist()
        clients, _, size = batches.row_cJB.shape
        step_bytes = max(1, clients * size * samples.x[:1].numel() * samples.x.element_size())
        self.window = max(1, (_GPU_WINDOW if samples.x.is_cuda else _CPU_WINDOW) // step_bytes)
        self.first, self.x, self.y = -self.window, samples.x, samples.y

    def at(self, step: int, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples, targets and (where some have a short batch) the mask of one step for some of the clients."""
        if not self.first <= step < self.first + self.window:
            self._gather(step)
        width, offset = self.width_J[step], step - self.first
        row_cB = self.batches.row_cJB[rows, step]
        mask_cB = None
        if isinstance(rows, Tensor):  # clients of one batch size
            width = int(self.batches.size_cJ[rows[0], step])
        elif self.short_J[step]:
            mask_cB = (row_cB[:, :width] >= 0).to(self.dtype)
        return self.x[rows, offset, :width], self.y[rows, offset, :width], mask_cB

    def _gather(self, step: int) -> None:
        row_cJB = self.batches.row_cJB[:, step : step + self.window]
        flat = row_cJB.reshape(-1).clamp(min=0)
        x, y = self.samples.x, self.samples.y
        self.x = x.index_select(0, flat).view(*row_cJB.shape, *x.shape[1:])
        self.y = y.index_select(0, flat).view(*row_cJB.shape, *y.shape[1:])
        self.first = step
