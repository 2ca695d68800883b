"""Gradients over clients' own samples, batch by batch: of a mini-batch in parts; for terms the mean gradient, and the
diagonal of the empirical Fisher information (the mean square of a single sample's gradient).

Shape letters: c clients of a chunk, P parameters, m samples, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.engine.batches import Batch, shares
from turnout.engine.gradients import Gradients
from turnout.machine.memory import to_device
from turnout.rng import keys
from turnout.types import Samples, Tensors


@dataclass(frozen=True)
class OwnSamples:
    """Some samples of some clients.

    pool      all samples
    row_cm    rows of the pool
    real_cm   False where a client has fewer than m samples
    """

    pool: Samples
    row_cm: Tensor
    real_cm: Tensor

    @classmethod
    def of(cls, pool: Samples, place_c: Tensor, client_c: Tensor, address: int, most: int | None = None) -> OwnSamples:
        """Up to `most` samples (None: all) of the clients at these positions of `pool`.

        An addressed order without repeats: it begins at an addressed sample and continues in steps that are coprime to
        the number of samples and near 0.618 of it, so that a few samples are well spread.
        """
        count_c, start_c = pool.count_C[place_c], pool.start_C[place_c]
        longest = int(count_c.max())
        i_m = torch.arange(longest if most is None else min(most, longest))
        begin_c = keys(address, client_c) & (2**31 - 1)
        least = ((n, max(1, int(n * 0.618))) for n in count_c.tolist())
        step_c = torch.tensor([next(s for s in range(first, n + 2) if math.gcd(s, n) == 1) for n, first in least])
        place_cm = (begin_c[:, None] + i_m * step_c[:, None]) % count_c[:, None]
        return cls(pool, pool.row_R[start_c[:, None] + place_cm], i_m < count_c[:, None])

    def batches(self, size: int, like: Tensor) -> Iterator[Batch]:
        """Batches of `size` samples of each client; masked if some clients have no samples left."""
        device = self.pool.x.device
        for first in range(0, self.row_cm.shape[1], size):
            some = slice(first, first + size)
            row_cB, real_cB = to_device(self.row_cm[:, some], device), self.real_cm[:, some]
            mask_cB = None if bool(real_cB.all()) else to_device(real_cB, like.device, like.dtype)
            yield Batch(*self.pool.at(row_cB), mask_cB, None, training=False)

    def count(self, like: Tensor) -> Tensor:
        """How many samples each client has here [c, 1]."""
        return to_device(self.real_cm.sum(1, keepdim=True), like.device, like.dtype)


def fisher(gradients: Gradients, flat_cP: Tensor, states: Tensors, own: OwnSamples, size: int) -> Tensor:
    """F_k = (1/m) Σ_s (∇ log p(y_s | x_s))² [c, P]."""
    total_cP = torch.empty_like(flat_cP)
    even = flat_cP.is_cuda and bool(own.real_cm.all())  # then nothing has to be divided afterwards
    scale = 1 / own.row_cm.shape[1] if even else 1.0
    for i, batch in enumerate(own.batches(size, flat_cP)):
        gradients.add_squares(flat_cP, states, batch, total_cP, i == 0, scale)
    return total_cP if even else total_cP.div_(own.count(flat_cP))


def batch_gradient(
    gradients: Gradients, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor, at_once: int | None
) -> Tensor:
    """Write the gradients of a batch into `out_cP`, of at most so many samples of a client at once; returns losses."""
    width = batch.y.shape[1]
    if at_once is None or width <= at_once:
        return gradients.gradient(flat_cP, states, batch, out_cP)
    weight_cB, part_cP = gradients.network.weights(batch, flat_cP.dtype), torch.empty_like(out_cP)
    share_cB, loss_c = shares(weight_cB), torch.zeros_like(flat_cP[:, 0])
    out_cP.zero_()
    for number, first in enumerate(range(0, width, at_once)):
        some = slice(first, first + at_once)
        mask_cB, keys_ck = batch.mask_cB, batch.keys_ck
        if mask_cB is not None:  # no samples here: one counts, with share 0
            mask_cB = mask_cB[:, some].clone()
            mask_cB[:, 0] = torch.where(mask_cB.sum(1) == 0, 1.0, mask_cB[:, 0])
        if keys_ck is not None and number:  # other dropout masks than those of the part before
            keys_ck = keys(keys_ck, torch.full((), number, device=keys_ck.device))  # made there, as in a captured step
        part = replace(batch, x=batch.x[:, some], y=batch.y[:, some], mask_cB=mask_cB, keys_ck=keys_ck)
        share_c = share_cB[:, some].sum(1)
        loss_c += share_c * gradients.gradient(flat_cP, states, part, part_cP)
        out_cP.addcmul_(part_cP, share_c[:, None])
    return loss_c


def mean_gradient(gradients: Gradients, flat_cP: Tensor, states: Tensors, own: OwnSamples, size: int) -> Tensor:
    """(1/m) Σ_s ∇ loss_s [c, P]; a sample counts with its positions."""
    total_cP, part_cP = torch.zeros_like(flat_cP), torch.empty_like(flat_cP)
    all_c1 = torch.zeros_like(flat_cP[:, :1])
    for batch in own.batches(size, flat_cP):
        here_c1 = gradients.network.weights(batch, flat_cP.dtype).sum(1, keepdim=True)
        if batch.mask_cB is not None:  # no samples left: repeat one, with weight 0
            batch.mask_cB[(batch.mask_cB.sum(1) == 0), 0] = 1
        gradients.gradient(flat_cP, states, batch, part_cP)
        total_cP.addcmul_(part_cP, here_c1)
        all_c1 += here_c1
    return total_cP.div_(all_c1.clamp(min=1))
