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

    def at(self, step: int, rows: slice) -> tuple[Tensor, Tensor]:
        """Row numbers and batch sizes of one step for some of the clients."""
        return self.row_cJB[rows, step], self.size_cJ[rows, step]


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
