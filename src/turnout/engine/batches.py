"""Mini-batches in an addressed order: which rows of the pool each client sees at each local step.

A client's samples in epoch e of round t are sorted by hash(seed, t, client, e, sample). A batch never crosses the end
of an epoch; the last one of an epoch may be short.

Shape letters: c clients of a block, J steps, B batch size, R rows, k dropout layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.inputs import MASK, Inputs, tensors_of, trimmed, used_positions, with_tensors
from turnout.machine.compiler import at, function, pointer, whole
from turnout.parts.local import steps_per_epoch
from turnout.rng import key, keys
from turnout.types import Samples

_CPU_WINDOW, _GPU_WINDOW = 4 << 20, 256 << 20  # bytes of samples gathered at once
WIDTHS = 32  # on a GPU, texts are cut to a multiple of this
SOURCE = Path(__file__).parent / "kernels" / "c" / "batches.c"
ARGUMENTS = (pointer,) * 4 + (whole,) * 5 + (pointer,) * 2 + (whole,)


@dataclass(frozen=True)
class Batches:
    """Batches of all steps of a block of clients.

    row_cJB   rows of the pool; a short batch is filled up with -1
    size_cJ   samples in each batch
    """

    row_cJB: Tensor
    size_cJ: Tensor


def address_batches(
    samples: Samples, client_c: Tensor, steps_c: Tensor, batch_size: int, drop_single: bool, seed: int, t: int,
    threads: int = 1,
) -> Batches:  # fmt: skip
    """The batches of a block of clients (in the order of `samples`), each for its own number of steps."""
    given = [v.to("cpu", torch.int64).contiguous() for v in (samples.row_R, samples.count_C, client_c, steps_c)]
    row_R, count_c, client_c, steps_c = given  # as C reads them
    longest = int(steps_c.max()) if steps_c.numel() else 0
    base, order = key(seed, "batches", t), function(SOURCE, "order", ARGUMENTS)
    if order is None:
        per_epoch_c = steps_per_epoch(count_c, batch_size, drop_single).clamp(min=1)
        own = replace(samples, row_R=row_R, count_C=count_c)
        return order_with_torch(own, keys(base, client_c), steps_c, per_epoch_c, batch_size, longest)
    row_cJB = torch.empty(len(client_c), longest, batch_size, dtype=torch.int64)
    size_cJ, least = torch.empty(len(client_c), longest, dtype=torch.int64), 2 if drop_single else 1
    if order(*map(at, given), len(client_c), base, least, longest, batch_size, at(row_cJB), at(size_cJ), threads):
        raise MemoryError
    return Batches(row_cJB, size_cJ)


def order_with_torch(
    samples: Samples, key_c: Tensor, steps_c: Tensor, per_epoch_c: Tensor, batch_size: int, longest: int
) -> Batches:
    """The same in torch, for machines without a compiler: one sort per epoch, over all clients."""
    count_c, start_c = samples.count_C, samples.start_C
    row_cJB = torch.full((len(key_c), longest, batch_size), -1, dtype=torch.int64)
    epochs = int(((steps_c - 1) // per_epoch_c).max()) + 1 if len(steps_c) else 0
    for epoch in range(epochs):
        here = (steps_c > epoch * per_epoch_c).nonzero().squeeze(1)
        count_h = count_c[here]
        owner_R = here.repeat_interleave(count_h)
        sample_R = torch.arange(len(owner_R)) - (count_h.cumsum(0) - count_h).repeat_interleave(count_h)
        hash_R = keys(keys(key_c, torch.tensor(epoch))[owner_R], sample_R)
        # one flat sort: the client in the top bits, the hash below it, so that owners stay together
        order_R = torch.sort((owner_R << 44) | ((hash_R >> 20) & (2**44 - 1)), stable=True).indices
        rows_R = samples.row_R[start_c[owner_R] + sample_R[order_R]]
        batch_R = sample_R // batch_size
        step_R = epoch * per_epoch_c[owner_R] + batch_R
        kept_R = (batch_R < per_epoch_c[owner_R]) & (step_R < steps_c[owner_R])
        target_R = (owner_R * longest + step_R) * batch_size + sample_R % batch_size
        row_cJB.view(-1)[target_R[kept_R]] = rows_R[kept_R]
    return Batches(row_cJB, (row_cJB >= 0).sum(2))


@dataclass(frozen=True)
class Batch:
    """One local step's samples for a chunk of clients.

    x, y      samples (a tensor or `Inputs`) and targets [c, B, ...]
    mask_cB   1 for real samples; None if every client has a full batch
    keys_ck   dropout keys
    training  whether the model is in training mode
    """

    x: Tensor
    y: Tensor
    mask_cB: Tensor | None
    keys_ck: Tensor | None
    training: bool = True

    def tensors(self) -> list[Tensor]:
        return [t for t in (*tensors_of(self.x), self.y, self.mask_cB, self.keys_ck) if t is not None]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Batch:
        """The same batch with these tensors, in the order of `tensors()`."""
        rest = iter(tensors)
        x, y = with_tensors(self.x, rest), next(rest)
        mask_cB = None if self.mask_cB is None else next(rest)
        return Batch(x, y, mask_cB, None if self.keys_ck is None else next(rest), self.training)


def shares(mask_cB: Tensor) -> Tensor:
    """Each real sample's weight in its client's mean; all 0 for a client without samples.

    >>> shares(torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000],
            [0.0000, 0.0000]])
    """
    return mask_cB / mask_cB.sum(1, keepdim=True).clamp(min=1)


class BatchLoader:
    """Loads the samples of a chunk of clients step by step; gathers a few steps at a time from the pool.

    `trim`: positions that no client's sample uses in a step are cut off (where samples have an attention mask).
    """

    def __init__(self, samples: Samples, batches: Batches, dtype: torch.dtype, trim: bool = False):
        self.samples, self.batches, self.dtype = samples, batches, dtype
        self.trim = trim and isinstance(samples.x, Inputs) and MASK in samples.x.tensors
        longest_J = batches.size_cJ.amax(0)  # `max` along a dimension wakes all of torch's threads
        self.width_J: list[int] = longest_J.tolist()
        short_cJ = (batches.size_cJ < longest_J) & (batches.size_cJ > 0)
        self.short_J: list[bool] = short_cJ.any(0).tolist()
        clients, _, size = batches.row_cJB.shape
        step_bytes = max(1, clients * size * samples.x[:1].numel() * samples.x.element_size())
        self.window = max(1, (_GPU_WINDOW if samples.x.is_cuda else _CPU_WINDOW) // step_bytes)
        self.first = -self.window
        self.x: tuple[Tensor, ...] = ()
        self.y: tuple[Tensor, ...] = ()

    def at(self, step: int, rows: slice | Tensor, idle: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples, targets and mask of one step for some of the clients; the mask is None if no batch is short.

        `idle`: some of them have no samples left in this step, and their mask is 0.
        """
        if not self.first <= step < self.first + self.window:
            self._gather(step)
        x_cB, y_cB, width = self.x[step - self.first], self.y[step - self.first], self.width_J[step]
        masked = idle or self.short_J[step]
        if isinstance(rows, slice) and not masked and width == x_cB.shape[1] and rows.stop == len(x_cB):
            return x_cB, y_cB, None
        mask_cB = None
        if isinstance(rows, Tensor):  # clients of one batch size
            width = int(self.batches.size_cJ[rows[0], step])
        elif masked:
            mask_cB = (self.batches.row_cJB[rows, step, :width] >= 0).to(self.dtype)
        return x_cB[rows, :width], y_cB[rows, :width], mask_cB

    def _gather(self, step: int) -> None:
        x, y = self.samples.x, self.samples.y
        rows = self.batches.row_cJB[:, step : step + self.window]
        step_dim = 1
        if not x.is_cuda:  # each step contiguous, so that products over all clients need no copy
            rows, step_dim = rows.transpose(0, 1), 0
        # Pad a short batch with its own first sample (and a step after a client's last with that of its first step): 0
        # times another client's NaN would still be NaN.
        own = self.batches.row_cJB[:, :1, :1] if step_dim else self.batches.row_cJB[:, :1, :1].transpose(0, 1)
        first = torch.where(rows[..., :1] < 0, own, rows[..., :1])
        flat = torch.where(rows < 0, first, rows).reshape(-1).clamp(min=0)
        self.x = x.index_select(0, flat).unflatten(0, rows.shape).unbind(step_dim)
        self.y = y.index_select(0, flat).unflatten(0, rows.shape).unbind(step_dim)
        if self.trim:
            real = torch.stack([step.tensors[MASK] for step in self.x if isinstance(step, Inputs)])
            used_J = used_positions(real).amax((1, 2)).clamp(min=1)
            if x.is_cuda:  # few widths, since a step is captured for each
                used_J = (-(-used_J // WIDTHS) * WIDTHS).clamp(max=real.shape[-1])
            self.x = tuple(trimmed(step, width) for step, width in zip(self.x, used_J.tolist(), strict=True))
        self.first = step
