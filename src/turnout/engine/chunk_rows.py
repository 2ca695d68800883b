"""The rows of a chunk of clients: their weights, states and batches, and the terms' view of them.

Terms may ask for the mean gradient of clients' own samples, and for the diagonal of the empirical Fisher information:
the mean square of a single sample's gradient. Both work batch by batch.

Shape letters: C clients of the cohort, c of the chunk, P parameters (all columns), J steps, k dropout keys, m samples,
B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from turnout.engine.batches import Batch, Batches, BatchLoader
from turnout.engine.dropout import dropout_keys
from turnout.engine.gradients import Gradients
from turnout.engine.job import Job, Trained
from turnout.engine.kernels.graphs import GraphCache, storage
from turnout.engine.network import Network
from turnout.machine.memory import to_device
from turnout.parts.terms.base import At
from turnout.rng import key, keys
from turnout.types import Samples, Tensors


class ChunkRows:
    """Some clients of a job, as views of their rows in `result`."""

    def __init__(
        self, job: Job, network: Network, gradients: Gradients, rows: slice, batches: Batches, result: Trained
    ):
        self.job, self.network, self.gradients = job, network, gradients
        self.rows, self.batches, self.result = rows, batches, result
        self.client_c, self.steps_c = job.client_C[rows], job.steps_C[rows]
        self.flat_cP = result.flat_CP[rows]
        self.start_cP = job.start_P[rows] if job.start_P.dim() == 2 else job.start_P[None]
        self.states = {name: value[rows] for name, value in result.states.items()}
        self.slots = {name: value[rows] for name, value in result.slots.items()}
        self.term_states = {term: {n: v[rows] for n, v in own.items()} for term, own in result.term_states.items()}
        self.server_term_states = job.server_term_states
        self.steps_there_c = to_device(self.steps_c, self.flat_cP.device)  # now, so that no step has to wait for it
        self.progress_c = self.there(job.optimizer.progress(self.steps_c)) if job.terms else self.steps_c
        self.examples_c = to_device(job.samples.count_C[rows], self.flat_cP.device) if job.terms else self.steps_c
        self.keys_cJk: Tensor | None = None
        if network.keys:
            keys_cJk = dropout_keys(job.seed, job.t, self.client_c, batches.size_cJ.shape[1], network.keys)
            self.keys_cJk = to_device(keys_cJk, job.samples.x.device)

    def there(self, value_c: Tensor) -> Tensor:
        """Numbers of clients in the weights' type, on their device."""
        return to_device(value_c, self.flat_cP.device, self.flat_cP.dtype)

    @cached_property
    def loader(self) -> BatchLoader:
        """Samples step by step; made when first used, because the steps in C need none."""
        return BatchLoader(self.job.samples, self.batches, self.job.start_P.dtype)

    def batch(self, step: int, rows: slice | Tensor, active: int | None = None) -> Batch:
        idle = active is not None and isinstance(rows, slice) and rows.stop > active
        x, y, mask_cB = self.loader.at(step, rows, idle)
        keys_ck = None if self.keys_cJk is None else self.keys_cJk[rows, step]
        return Batch(x, y, mask_cB, keys_ck)

    def term_view(
        self, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch | None = None
    ) -> At:
        job, shared = self.job, self.network.layout.shared
        start = self.start_cP if self.start_cP.shape[0] == 1 else self.start_cP[rows]

        def weights_at(x_cP: Tensor) -> Tensor:
            full = flat.clone()
            full[:, :shared] = x_cP
            return full

        def samples(address: int, most: int | None = None) -> OwnSamples:
            place_c = torch.arange(self.rows.start, self.rows.stop)[rows]
            return OwnSamples.of(job.samples, place_c, self.client_c[rows], address, most)

        def gradient(x_cP: Tensor) -> Tensor:
            out, given = torch.empty_like(flat), batch or self.batch(step, rows)
            self.gradients.gradient(weights_at(x_cP), {n: v.clone() for n, v in states.items()}, given, out)
            return out[:, :shared]

        def squared_gradients(most: int) -> Tensor:
            own = samples(key(job.seed, "samples", job.t), most)
            size = max(job.batch_size, 32) if flat.is_cuda else job.batch_size
            found = fisher(self.gradients, flat, states, own, size)
            return found if found.shape[1] == shared else found[:, :shared]

        def full_gradient(x_cP: Tensor) -> Tensor:
            own = samples(address=0)
            return mean_gradient(self.gradients, weights_at(x_cP), states, own, job.batch_size)[:, :shared]

        return At(
            x_cP=flat[:, :shared],
            start_cP=start[:, :shared],
            lr=job.lr,
            step=step,
            steps_c=self.progress_c[rows],
            examples_c=self.examples_c[rows],
            gradient=gradient,
            squared_gradients=squared_gradients,
            full_gradient=full_gradient,
            t=job.t,
        )

    def hold_rows(self, graphs: GraphCache, states_only: bool) -> None:
        """Work on copies whose addresses are the same in every round, as captured steps need."""
        hold = graphs.hold
        self.states = {name: hold(f"state {name}", value) for name, value in self.states.items()}
        if states_only:
            return
        self.start_cP = hold("start", self.start_cP)
        self.progress_c, self.examples_c = hold("steps", self.progress_c), hold("examples", self.examples_c)
        self.slots = {name: hold(f"slot {name}", value) for name, value in self.slots.items()}
        for term in self.job.terms:
            own, sent = self.term_states.get(term.name, {}), self.job.server_term_states.get(term.name, {})
            self.term_states[term.name] = {n: hold(f"mine {term.name} {n}", v) for n, v in own.items()}
            held = {n: hold(f"down {term.name} {n}", v[None])[0] for n, v in sent.items()}
            self.server_term_states = {**self.server_term_states, term.name: held}

    def put_rows_back(self, states_only: bool) -> None:
        for name, value in self.states.items():
            self.result.states[name][self.rows] = value
        if states_only:
            return
        for name, value in self.slots.items():
            self.result.slots[name][self.rows] = value
        for term, own in self.term_states.items():
            for name, value in own.items():
                self.result.term_states[term][name][self.rows] = value

    def finish_terms(self) -> None:
        """Write the tensors that terms send and keep when training has ended into the cohort's result."""
        result, clients, everyone = self.result, len(self.job.client_C), slice(0, len(self.client_c))
        for term in self.job.terms:
            at, before = self.term_view(0, everyone, self.flat_cP, self.states), self.term_states.get(term.name, {})
            up, mine = term.finish(at, self.server_term_states.get(term.name, {}), before)
            for name, value in up.items():  # first, since they may be rows that are about to change
                sent = result.uploads.setdefault(term.name, {})
                if len(value) == clients and self._is_new(value):
                    sent[name] = value
                else:
                    sent.setdefault(name, value.new_zeros(clients, *value.shape[1:]))[self.rows] = value
            old = {name: storage(value) for name, value in before.items()}
            moved = {
                n for n, v in mine.items() if any(n != name and storage(v) == place for name, place in old.items())
            }
            copied = {n: v.clone() if n in moved else v for n, v in mine.items()}  # `moved` are rows about to change
            for name, value in copied.items():
                kept = self.term_states[term.name][name]
                alike = value.shape == kept.shape and value.dtype == kept.dtype
                if alike and len(value) == clients and self._is_new(value):
                    self.term_states[term.name][name] = result.term_states[term.name][name] = value
                else:
                    kept.copy_(value)

    def _is_new(self, value: Tensor) -> bool:
        """Whether a tensor shares no memory with tensors that terms were shown or have already sent."""
        shown = [self.flat_cP, self.start_cP, *self.states.values(), self.progress_c, self.examples_c]
        for rows in (*self.term_states.values(), *self.server_term_states.values(), *self.result.uploads.values()):
            shown += rows.values()
        return storage(value) not in map(storage, shown)


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
            yield Batch(self.pool.x[row_cB], self.pool.y[row_cB], mask_cB, None, training=False)

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


def mean_gradient(gradients: Gradients, flat_cP: Tensor, states: Tensors, own: OwnSamples, size: int) -> Tensor:
    """(1/m) Σ_s ∇ loss_s [c, P]."""
    total_cP, part_cP = torch.zeros_like(flat_cP), torch.empty_like(flat_cP)
    for batch in own.batches(size, flat_cP):
        here_c1 = torch.full_like(flat_cP[:, :1], batch.x.shape[1])
        if batch.mask_cB is not None:
            here_c1 = batch.mask_cB.sum(1, keepdim=True)
            batch.mask_cB[(here_c1 == 0).squeeze(1), 0] = 1  # no samples left: repeat one, with weight 0
        gradients.gradient(flat_cP, states, batch, part_cP)
        total_cP.addcmul_(part_cP, here_c1)
    return total_cP.div_(own.count(flat_cP))
