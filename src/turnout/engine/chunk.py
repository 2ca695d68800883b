"""A few clients on their way through their local steps, with any of the gradients of engine/gradients.py or in C.

Shape letters: C clients of the cohort, c of the chunk, P parameters (all columns), B batch.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from turnout.engine.batches import Batches, Feed
from turnout.engine.dropout import dropout_keys
from turnout.engine.gpu.graphs import Batch
from turnout.engine.gradients import ByHand, Gradients, Network
from turnout.engine.job import Job, Trained
from turnout.engine.native.steps import Native, Rate
from turnout.engine.own_samples import OwnSamples, fisher, mean_gradient
from turnout.parts.optimizers import SGD
from turnout.parts.terms.base import At
from turnout.rng import key
from turnout.types import Tensors


def _put_back(rows: slice | Tensor, home: Tensors, changed: Tensors) -> None:
    """Write back what is not the home's own memory: gathered groups, and tensors that a part has put in their place."""
    for name, value in changed.items():
        if isinstance(rows, Tensor) or value.data_ptr() != home[name][rows].data_ptr():
            home[name][rows] = value


class Chunk:
    """A few clients on their way through their local steps."""

    def __init__(
        self,
        job: Job,
        network: Network,
        gradients: Gradients,
        rows: slice,
        batches: Batches,
        result: Trained,
        native: tuple[Native, Rate] | None = None,
    ):
        self.job, self.network, self.gradients, self.native = job, network, gradients, native
        self.rows, self.result = rows, result
        self.batches = batches
        self.client_c, self.steps_c = job.client_C[rows], job.steps_C[rows]
        self.flat_cP = result.flat_CP[rows]
        self.start_cP = job.start_P[rows] if job.start_P.dim() == 2 else job.start_P[None]
        loose = job.fused and native is None
        self.loose = gradients.loosen(self.start_cP, len(self.client_c), self._samples_seen()) if loose else None
        if self.loose is None and native is None:
            self.flat_cP.copy_(self.start_cP)
        self.states = {name: value[rows] for name, value in result.states.items()}
        self.slots = {name: value[rows] for name, value in result.slots.items()}
        self.mine = {term: {n: v[rows] for n, v in own.items()} for term, own in result.mine.items()}
        self.progress_c = job.optimizer.progress(self.steps_c).to(self.flat_cP) if job.terms else self.steps_c
        self.grad_cP = torch.empty_like(self.flat_cP) if not job.fused and native is None else None
        self.loss_c = result.loss_C[rows]
        self.grouped = gradients.sees_padding and network.has_batch_statistics()
        self.keys_cJk: Tensor | None = None
        if network.dropout_keys:
            steps, layers = batches.size_cJ.shape[1], len(network.dropout_keys)
            keys_cJk = dropout_keys(job.seed, job.t, self.client_c, steps, layers)
            self.keys_cJk = keys_cJk.to(job.samples.x.device)

    @cached_property
    def feed(self) -> Feed:
        """Samples step by step; steps in C need none."""
        return Feed(self.job.samples, self.batches, self.job.start_P.dtype)

    def _samples_seen(self) -> int:
        return min(self.job.followed, sum(self.feed.width_J))

    def run(self) -> None:
        self._in_c() if self.native else self._advance()
        for sums in (self.result.loss_C, *self.result.magnitude.values()):
            sums[self.rows] /= self.steps_c.clamp(min=1).to(self.flat_cP.device)
        self.result.count_C[self.rows] += self.steps_c.to(self.flat_cP.device)
        self._finish()

    def _in_c(self) -> None:
        assert self.native is not None
        native, rate = self.native
        shared = 0 if self.job.terms else self.network.layout.shared  # terms look at the weights first
        work = (self.job.samples, self.batches, self.steps_c, self.start_cP, rate, self.flat_cP, shared)
        self.loss_c += native.train(*work)

    def _advance(self) -> None:
        steps = self.steps_c.tolist()
        active = len(steps)
        for step in range(steps[0] if steps else 0):
            while steps[active - 1] <= step:
                active -= 1
            for rows in self._groups(step, active):
                self._step(step, rows)

    def _groups(self, step: int, active: int) -> list[slice | Tensor]:
        """Clients that take this step together: all, or by batch size where padding would be seen."""
        if not self.grouped or not self.feed.short_J[step]:
            return [slice(0, active)]
        size_c = self.batches.size_cJ[:active, step]
        return [(size_c == size).nonzero().squeeze(1) for size in size_c.unique().tolist()]

    def _batch(self, step: int, rows: slice | Tensor) -> Batch:
        x, y, mask_cB = self.feed.at(step, rows)
        keys_ck = None if self.keys_cJk is None else self.keys_cJk[rows, step]
        return Batch(x, y, mask_cB, keys_ck)

    def _step(self, step: int, rows: slice | Tensor) -> None:
        batch = self._batch(step, rows)
        if self.loose is not None and isinstance(rows, slice) and isinstance(self.gradients, ByHand):
            assert isinstance(self.job.optimizer, SGD)
            whole, decay = rows.stop == len(self.client_c), self.job.optimizer.weight_decay
            loose = self.loose if whole else self.loose.first(rows.stop)
            states = {name: value[rows] for name, value in self.states.items()}
            loss = self.gradients.descend_loose(loose, states, batch, self.job.lr, decay)
            (self.loss_c if whole else self.loss_c[rows]).add_(loss)
            return
        flat, states = self.flat_cP[rows], {name: value[rows] for name, value in self.states.items()}
        if self.grad_cP is None:
            assert isinstance(self.job.optimizer, SGD)
            loss = self.gradients.descend(flat, states, batch, self.job.lr, self.job.optimizer.weight_decay)
        else:
            loss = self._general_step(step, rows, flat, states, batch)
        if isinstance(rows, Tensor):  # a gathered group is a copy: put it back
            self.flat_cP[rows] = flat
            for name, value in states.items():
                self.states[name][rows] = value
        self.loss_c[rows] += loss

    def _general_step(self, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch) -> Tensor:
        """Gradient, then what the terms make of it (shared columns only), then the optimizer."""
        assert self.grad_cP is not None
        grad = self.grad_cP[rows]
        loss = self.gradients.gradient(flat, states, batch, grad)
        shared = self.network.layout.shared
        for slot in self.network.layout.slots if self.job.magnitudes else ():
            size_c = grad[:, slot.start : slot.start + slot.size].abs().mean(1)
            self.result.magnitude[slot.name][self.rows][rows] += size_c
        for term in self.job.terms:
            mine = {n: v[rows] for n, v in self.mine.get(term.name, {}).items()}
            at = self._at(step, rows, flat, states, batch)
            corrected = term.correct(grad[:, :shared], at, self.job.down.get(term.name, {}), mine)
            if corrected.data_ptr() != grad.data_ptr():
                grad[:, :shared] = corrected
            _put_back(rows, self.mine.get(term.name, {}), mine)
        slots = {name: value[rows] for name, value in self.slots.items()}
        count = self.result.count_C[self.rows][rows] + step + 1
        self.job.optimizer.step(flat, grad, slots, count, self.job.lr)
        _put_back(rows, self.slots, slots)
        for term in self.job.terms:
            mine = {n: v[rows] for n, v in self.mine.get(term.name, {}).items()}
            term.settle(self._at(step, rows, flat, states, batch), self.job.down.get(term.name, {}), mine)
            _put_back(rows, self.mine.get(term.name, {}), mine)
        return loss

    def _at(self, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch | None = None) -> At:
        shared = self.network.layout.shared
        start = self.start_cP if self.start_cP.shape[0] == 1 else self.start_cP[rows]

        def gradient(x_cP: Tensor) -> Tensor:
            full, out = flat.clone(), torch.empty_like(flat)
            full[:, :shared] = x_cP
            given = batch or self._batch(step, rows)
            self.gradients.gradient(full, {n: v.clone() for n, v in states.items()}, given, out)
            return out[:, :shared]

        def squared_gradients(samples: int) -> Tensor:
            place_c = torch.arange(self.rows.start, self.rows.stop)[rows]
            address = key(self.job.seed, "samples", self.job.t)
            own = OwnSamples.of(self.job.samples, place_c, self.client_c[rows], address, samples)
            return fisher(self.gradients, flat, states, own, self.job.batch_size)[:, :shared]

        def full_gradient(x_cP: Tensor) -> Tensor:
            full, place_c = flat.clone(), torch.arange(self.rows.start, self.rows.stop)[rows]
            full[:, :shared] = x_cP
            own = OwnSamples.of(self.job.samples, place_c, self.client_c[rows], address=0)
            return mean_gradient(self.gradients, full, states, own, self.job.batch_size)[:, :shared]

        return At(
            x_cP=flat[:, :shared],
            start_cP=start[:, :shared],
            lr=self.job.lr,
            step=step,
            steps_c=self.progress_c[rows],
            examples_c=self.job.samples.count_C[self.rows][rows].to(flat.device),
            gradient=gradient,
            squared_gradients=squared_gradients,
            full_gradient=full_gradient,
            t=self.job.t,
        )

    def _finish(self) -> None:
        """When training ends: what each term sends and keeps."""
        whole = slice(0, len(self.client_c))
        for term in self.job.terms:
            at = self._at(0, whole, self.flat_cP, self.states)
            up, mine = term.after(at, self.job.down.get(term.name, {}), self.mine.get(term.name, {}))
            for name, value in mine.items():
                self.mine[term.name][name].copy_(value)
            for name, value in up.items():
                self._home(term.name, name, value)[self.rows] = value
        self._become_update()

    def _become_update(self) -> None:
        """Turn the shared columns into what is sent, while they are still in the cache."""
        layout = self.network.layout
        update_cP, start_cP = self.flat_cP[:, : layout.shared], self.start_cP[:, : layout.shared]
        if self.native is not None and not self.job.terms:
            pass  # it is one already
        elif self.loose is None:
            update_cP.sub_(start_cP)
        else:
            starts, homes = layout.views(start_cP), layout.views(self.flat_cP)
            for slot in layout.slots:
                if slot.start < layout.shared:
                    self.loose.write_update(slot.name, starts[slot.name], homes[slot.name])
                else:
                    homes[slot.name].copy_(self.loose.weights[slot.name])
        if self.job.scale_C is not None:
            update_cP.mul_(self.job.scale_C[self.rows, None].to(update_cP))
        self.result.finite_C[self.rows] = torch.isfinite(update_cP.sum(1))

    def _home(self, term: str, name: str, like: Tensor) -> Tensor:
        """The cohort's matrix for what a term sends, made when the first chunk arrives."""
        clients = len(self.job.client_C)
        return self.result.up.setdefault(term, {}).setdefault(name, like.new_zeros(clients, *like.shape[1:]))
