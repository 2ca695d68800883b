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
_REMEMBERED = 1 << 20  # samples whose places are kept for the next round


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


@dataclass(frozen=True)
class _Places:
    """Where the samples of one epoch go, whatever their order: known from the counts and steps alone."""

    owner_R: Tensor  # whose sample it is, as a position in the block
    sample_R: Tensor  # which of its owner's
    from_R: Tensor  # where the owner's rows begin
    kept_R: Tensor | None  # those that are trained on, where not all are
    target_R: Tensor  # places in the table of rows, for those kept
    cell_R: Tensor | None  # places in a table with a line for each owner; None where most of it would be empty
    lines: int
    cells: int

    def shuffled(self, value_R: Tensor) -> Tensor:
        """The numbers of each owner's samples, in the order of their values (of 44 bits); equal ones as they stand.

        Many short lines are sorted in a quarter of the time of everything at once, with the owner in the top bits.
        """
        if self.cell_R is None:
            return self.sample_R[torch.sort((self.owner_R << 44) | value_R, stable=True).indices]
        full = len(self.cell_R) == self.cells
        table = value_R if full else value_R.new_full((self.cells,), 1 << 44).index_copy_(0, self.cell_R, value_R)
        number = torch.sort(table.view(self.lines, -1), dim=1, stable=True).indices.flatten()
        return number if full else number[self.cell_R]  # what fills a line up is behind its samples


def _places(
    count_c: Tensor, start_c: Tensor, steps_c: Tensor, epoch: int, batch_size: int, per_epoch_c: Tensor
) -> _Places:
    here = (steps_c > epoch * per_epoch_c).nonzero().squeeze(1)
    count_h = count_c[here]
    owner_R = here.repeat_interleave(count_h)
    sample_R = torch.arange(len(owner_R)) - (count_h.cumsum(0) - count_h).repeat_interleave(count_h)
    batch_R = sample_R // batch_size
    step_R = epoch * per_epoch_c[owner_R] + batch_R
    kept_R = (batch_R < per_epoch_c[owner_R]) & (step_R < steps_c[owner_R])
    longest = int(steps_c.max())
    target_R = (owner_R * longest + step_R) * batch_size + sample_R % batch_size
    everything, longest_line = bool(kept_R.all()), int(count_h.max()) if len(here) else 0
    cells = len(here) * longest_line
    line_R = torch.arange(len(here)).repeat_interleave(count_h)
    cell_R = line_R * longest_line + sample_R if 0 < cells <= 2 * len(owner_R) else None
    targets = (None if everything else kept_R, target_R[kept_R])
    return _Places(owner_R, sample_R, start_c[owner_R], *targets, cell_R, len(here), cells)


class Layouts:
    """The places of the last blocks: a cohort that is asked again with the same work needs none computed."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Tensor, Tensor, int, list[_Places]]] = {}

    def places(
        self, block: int, samples: Samples, steps_c: Tensor, batch_size: int, drop_single: bool
    ) -> list[_Places]:
        count_c = samples.count_C
        found = self._last.get(block)
        if found and found[2] == batch_size and torch.equal(found[0], count_c) and torch.equal(found[1], steps_c):
            return found[3]
        per_epoch_c = steps_per_epoch(count_c, batch_size, drop_single).clamp(min=1)
        epochs = int(((steps_c - 1) // per_epoch_c).max()) + 1 if len(steps_c) else 0
        args = (batch_size, per_epoch_c)
        made = [_places(count_c, samples.start_C, steps_c, epoch, *args) for epoch in range(epochs)]
        if sum(len(p.owner_R) for p in made) <= _REMEMBERED:
            self._last[block] = (count_c.clone(), steps_c.clone(), batch_size, made)
        return made


def address_batches(
    samples: Samples,
    client_c: Tensor,
    steps_c: Tensor,
    batch_size: int,
    drop_single: bool,
    seed: int,
    t: int,
    layouts: Layouts | None = None,
    block: int = 0,
) -> Batches:
    """Lay out the batches of a block of clients, in the samples' order, each for its own number of steps."""
    longest = int(steps_c.max()) if steps_c.numel() else 0
    row_cJB = torch.full((len(client_c), longest, batch_size), -1, dtype=torch.int64)
    client_key_c = keys(key(seed, "batches", t), client_c)
    places = (layouts or Layouts()).places(block, samples, steps_c, batch_size, drop_single)
    for epoch, place in enumerate(places):
        hash_R = keys(keys(client_key_c, torch.tensor(epoch))[place.owner_R], place.sample_R)
        rows_R = samples.row_R[place.from_R + place.shuffled((hash_R >> 20) & (2**44 - 1))]
        row_cJB.view(-1)[place.target_R] = rows_R if place.kept_R is None else rows_R[place.kept_R]
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
        self.first = -self.window
        self.x: tuple[Tensor, ...] = ()
        self.y: tuple[Tensor, ...] = ()

    def at(self, step: int, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples, targets and (where some have a short batch) the mask of one step for some of the clients."""
        if not self.first <= step < self.first + self.window:
            self._gather(step)
        x_cB, y_cB, width = self.x[step - self.first], self.y[step - self.first], self.width_J[step]
        if isinstance(rows, slice) and not self.short_J[step] and width == x_cB.shape[1] and rows.stop == len(x_cB):
            return x_cB, y_cB, None
        mask_cB = None
        if isinstance(rows, Tensor):  # clients of one batch size
            width = int(self.batches.size_cJ[rows[0], step])
        elif self.short_J[step]:
            mask_cB = (self.batches.row_cJB[rows, step, :width] >= 0).to(self.dtype)
        return x_cB[rows, :width], y_cB[rows, :width], mask_cB

    def _gather(self, step: int) -> None:
        x, y = self.samples.x, self.samples.y
        rows = self.batches.row_cJB[:, step : step + self.window]
        at = 1  # where the steps are
        if not x.is_cuda:  # each step in one piece of memory: products over all clients need no copy
            rows, at = rows.transpose(0, 1), 0
        # A short batch is filled up with its own first sample: a mask of 0 would not hide another client's NaN.
        flat = torch.where(rows < 0, rows[..., :1], rows).reshape(-1).clamp(min=0)
        self.x = x.index_select(0, flat).view(*rows.shape, *x.shape[1:]).unbind(at)
        self.y = y.index_select(0, flat).view(*rows.shape, *y.shape[1:]).unbind(at)
        self.first = step
