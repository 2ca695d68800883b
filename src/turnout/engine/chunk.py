"""A chunk of clients going through its local steps, with any of the gradients of engine/gradients.py or in C.

Shape letters: C clients of the cohort, c of the chunk, P parameters (all columns), B batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from turnout.engine.batches import Batch, Batches, BatchLoader
from turnout.engine.by_hand import ByHand
from turnout.engine.dropout import dropout_keys
from turnout.engine.factored import ChunkWeights
from turnout.engine.gpu.optimizer_steps import Pull, Spring, optimizer_step, pull_fits, pulled_descent
from turnout.engine.gradients import Gradients
from turnout.engine.job import Job, Trained, cuda_graph_safe, plain_sgd
from turnout.engine.native.steps import NativeJob, StepTensors, kept_in_c
from turnout.engine.network import Network
from turnout.engine.standing import hold_rows, put_rows_back, standing
from turnout.engine.term_rows import finish_terms
from turnout.exchange import Limit
from turnout.machine.transfer import to_device
from turnout.parts.optimizers import SGD
from turnout.parts.terms.base import PostStep
from turnout.types import Tensors

NATIVE_STEPS = 16  # between two looks at a job's limit


class Chunk:
    """Trains a few clients of a job and writes what comes out into its rows of `result`."""

    def __init__(
        self,
        job: Job,
        network: Network,
        gradients: Gradients,
        rows: slice,
        batches: Batches,
        result: Trained,
        native: NativeJob | None = None,
    ):
        self.job, self.network, self.gradients, self.native = job, network, gradients, native
        self.rows, self.result = rows, result
        self.batches = batches
        self.client_c, self.steps_c = job.client_C[rows], job.steps_C[rows]
        self.flat_cP = result.flat_CP[rows]
        self.start_cP = job.start_P[rows] if job.start_P.dim() == 2 else job.start_P[None]
        self.weights = self._own_weights()
        if self.weights is None and native is None:
            self.flat_cP.copy_(self.start_cP)
        self.states = {name: value[rows] for name, value in result.states.items()}
        self.slots = {name: value[rows] for name, value in result.slots.items()}
        self.mine = {term: {n: v[rows] for n, v in own.items()} for term, own in result.mine.items()}
        self.down = job.down
        self.steps_there_c = to_device(self.steps_c, self.flat_cP.device)  # before the steps: nothing has to wait later
        self.progress_c = self._there(job.optimizer.progress(self.steps_c)) if job.terms else self.steps_c
        self.examples_c = to_device(job.samples.count_C[rows], self.flat_cP.device) if job.terms else self.steps_c
        self.graphs = gradients.graphs if self.flat_cP.is_cuda else None
        self.spring = self._spring()
        if self.graphs is not None:
            self.graphs.keep("matrix", result.flat_CP)
            hold_rows(self, self.graphs)
        self.grad_cP = self._gradient_room() if not self.in_one and native is None else None
        self.loss_c = result.loss_C[rows]
        self.finite_c: Tensor | None = None  # whether each update is a number, where C has said so
        self.grouped = gradients.sees_padding and network.has_batch_statistics()
        self.keys_cJk = self._dropout_keys()

    def _there(self, value_c: Tensor) -> Tensor:
        """Numbers of clients as those of the weights, beside them."""
        return to_device(value_c, self.flat_cP.device, self.flat_cP.dtype)

    @property
    def in_one(self) -> bool:
        """Whether a step needs no gradient by itself."""
        return self.job.fused or self.spring is not None

    def _spring(self) -> Spring | None:
        """What plain SGD does beside the gradient, where terms are springs or drifts and a GPU can do both at once."""
        job, graphs, flat_cP = self.job, self.graphs, self.flat_cP
        hand = isinstance(self.gradients, ByHand) and pull_fits(job.optimizer, flat_cP, flat_cP)
        if graphs is None or not hand or not job.terms or not cuda_graph_safe(job):
            return None
        pull = Pull.of(job.terms, self.start_cP[:, : self.network.layout.shared], self.down, self.mine)
        return None if pull is None else Spring.of(pull, job.lr, graphs)

    def _gradient_room(self) -> Tensor:
        if self.graphs is None:
            return torch.empty_like(self.flat_cP)
        return self.graphs.hold("gradient", self.flat_cP, copy=False)

    def _own_weights(self) -> ChunkWeights | None:
        """A copy of the weights outside the cohort's matrix, for plain SGD on engines that are faster on one."""
        if not self.job.fused or self.native is not None:
            return None
        samples = min(self.job.factored_samples, sum(self.loader.width_J))
        return self.gradients.chunk_weights(self.start_cP, len(self.client_c), samples)

    def _dropout_keys(self) -> Tensor | None:
        if not self.network.keys:
            return None
        steps = self.batches.size_cJ.shape[1]
        keys_cJk = dropout_keys(self.job.seed, self.job.t, self.client_c, steps, self.network.keys)
        return to_device(keys_cJk, self.job.samples.x.device)

    @cached_property
    def loader(self) -> BatchLoader:
        """Samples step by step; made when first used, because the steps in C need none."""
        return BatchLoader(self.job.samples, self.batches, self.job.start_P.dtype)

    def run(self) -> None:
        """All local steps, then what terms send and keep, then the update."""
        if self.native is not None:
            with kept_in_c(self.slots, self.native.rule.lr):
                self._run_native(self.native)
        else:
            self._run_steps()
        for sums in (self.result.loss_C, *self.result.magnitude.values()):
            sums[self.rows].div_(self.steps_there_c.clamp(min=1))
        self.result.count_C[self.rows].add_(self.steps_there_c)
        finish_terms(self)
        if self.graphs is not None:
            put_rows_back(self)
        self._write_update()

    def _run_native(self, native: NativeJob) -> None:
        if self.job.limit is not None:
            return self._run_native_until(self.job.limit, native)
        shared = 0 if self.job.terms else self.network.layout.shared  # terms need the weights, not the update
        beside = StepTensors(self.slots, self.result.count_C[self.rows], self.keys_cJk, self.states)
        samples, batches = self.job.samples, self.batches
        self.finite_c = native.train(
            samples, batches, self.steps_c, self.start_cP, beside, self.flat_cP, self.loss_c, shared
        )
        return None

    def _run_native_until(self, limit: Limit, native: NativeJob) -> None:
        """Some steps at a time, each beginning where the last ended, so that the limit is looked at in between."""
        self.flat_cP.copy_(self.start_cP)
        for first in range(0, int(self.steps_c.max()), NATIVE_STEPS):
            if first and limit.reached():
                return self._stopped(first)
            some = slice(first, first + NATIVE_STEPS)
            batches = Batches(self.batches.row_cJB[:, some], self.batches.size_cJ[:, some])
            left_c = (self.steps_c - first).clamp(0, NATIVE_STEPS)
            start_cP = self.flat_cP.clone()
            keys_cJk = None if self.keys_cJk is None else self.keys_cJk[:, some]
            beside = StepTensors(self.slots, self.result.count_C[self.rows] + first, keys_cJk, self.states)
            native.train(self.job.samples, batches, left_c, start_cP, beside, self.flat_cP, self.loss_c)
        return None

    def _stopped(self, steps: int) -> None:
        """Nobody takes more steps than these."""
        self.steps_c = self.steps_c.clamp(max=steps)
        self.steps_there_c = to_device(self.steps_c, self.flat_cP.device)
        self.result.steps_C[self.rows] = self.steps_c
        if self.job.terms:
            self.progress_c = self._there(self.job.optimizer.progress(self.steps_c))

    def _run_steps(self) -> None:
        steps = self.steps_c.tolist()
        active = len(steps)
        for step in range(steps[0] if steps else 0):
            if step and self.job.limit is not None and self.job.limit.reached():
                self._stopped(step)
                return
            while steps[active - 1] <= step:
                active -= 1
            for rows in self._groups(step, self._together(active)):
                self._step(step, rows, active)

    def _together(self, active: int) -> int:
        """How many clients take a step together. Where clients have very different numbers of steps, on a GPU some who
        have finished take part with empty batches: so few sizes occur, and each is captured once."""
        plain = self.job.fused and plain_sgd(self.job.optimizer) and not getattr(self.job.optimizer, "weight_decay", 0)
        if self.graphs is None or not plain or self.states:
            return active
        return min(1 << (active - 1).bit_length(), len(self.client_c))

    def _groups(self, step: int, active: int) -> list[slice | Tensor]:
        """Clients that take this step together: all active ones, or those of equal batch size where padding matters."""
        if not self.grouped or not self.loader.short_J[step]:
            return [slice(0, active)]
        size_c = self.batches.size_cJ[:active, step]
        return [(size_c == size).nonzero().squeeze(1) for size in size_c.unique().tolist()]

    def batch(self, step: int, rows: slice | Tensor, active: int | None = None) -> Batch:
        idle = active is not None and isinstance(rows, slice) and rows.stop > active
        x, y, mask_cB = self.loader.at(step, rows, idle)
        keys_ck = None if self.keys_cJk is None else self.keys_cJk[rows, step]
        return Batch(x, y, mask_cB, keys_ck)

    def _step(self, step: int, rows: slice | Tensor, active: int) -> None:
        batch = self.batch(step, rows, active)
        if self.weights is not None and isinstance(rows, slice) and isinstance(self.gradients, ByHand):
            self._step_on_copy(self.gradients, self.weights, rows, batch)
            return
        flat, states = self.flat_cP[rows], {name: value[rows] for name, value in self.states.items()}
        if self.spring is not None and isinstance(self.gradients, ByHand):
            loss = self.gradients.descend_sprung(flat, states, batch, self.job.lr, self.spring.first(len(flat)))
        elif self.grad_cP is None:
            assert isinstance(self.job.optimizer, SGD)
            loss = self.gradients.descend(flat, states, batch, self.job.lr, self.job.optimizer.weight_decay)
        else:
            loss = self._general_step(step, rows, flat, states, batch)
        if isinstance(rows, Tensor):  # indexing by a tensor copies: write the copies back
            self.flat_cP[rows] = flat
            for name, value in states.items():
                self.states[name][rows] = value
        self.loss_c[rows] += loss

    def _step_on_copy(self, gradients: ByHand, weights: ChunkWeights, rows: slice, batch: Batch) -> None:
        """A plain SGD step of the first clients on their weights outside the cohort's matrix."""
        assert isinstance(self.job.optimizer, SGD)
        everyone, decay = rows.stop == len(self.client_c), self.job.optimizer.weight_decay
        active = weights if everyone else weights.first(rows.stop)
        states = {name: value[rows] for name, value in self.states.items()}
        loss = gradients.descend_chunk(active, states, batch, self.job.lr, decay)
        (self.loss_c if everyone else self.loss_c[rows]).add_(loss)

    def _general_step(self, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch) -> Tensor:
        """Gradient, then the terms' corrections (shared columns only), then the optimizer."""
        assert self.grad_cP is not None
        count_c = self.result.count_C[self.rows][rows] + step + 1
        if self.graphs is None or isinstance(rows, Tensor) or not cuda_graph_safe(self.job):
            return self._corrected_step(step, rows, flat, states, batch, count_c, self.job.lr)

        def corrected(lr: Tensor, count_c: Tensor, *tensors: Tensor) -> Tensor:
            return self._corrected_step(step, rows, flat, states, batch.with_tensors(tensors), count_c, lr)

        beside = [*states.values(), self.start_cP, self.grad_cP, *(value[rows] for value in self.slots.values())]
        for kept in (*self.mine.values(), *self.down.values()):
            beside += kept.values()
        lr = torch.full((), self.job.lr, device=flat.device, dtype=flat.dtype)
        also = (self.job.optimizer, tuple(self.job.terms), batch.mask_cB is None, batch.keys_ck is None)
        return self.graphs.run(corrected, [flat, *beside], [lr, count_c, *batch.tensors()], also)

    def _corrected_step(
        self, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch, count_c: Tensor, lr: Any
    ) -> Tensor:  # fmt: skip
        assert self.grad_cP is not None
        grad = self.grad_cP[rows]
        loss = self.gradients.gradient(flat, states, batch, grad)
        shared, at = self.network.layout.shared, replace(standing(self, step, rows, flat, states, batch), lr=lr)
        for slot in self.network.layout.slots if self.job.magnitudes else ():
            size_c = grad[:, slot.start : slot.start + slot.size].abs().mean(1)
            self.result.magnitude[slot.name][self.rows][rows] += size_c
        pull = self._pull(rows, flat, grad)
        if pull is not None:
            pulled_descent(flat, grad, pull, lr)
            return loss
        for term in self.job.terms:
            mine = {n: v[rows] for n, v in self.mine.get(term.name, {}).items()}
            corrected = term.transform_grad(grad[:, :shared], at, self.down.get(term.name, {}), mine)
            if corrected.data_ptr() != grad.data_ptr():
                grad[:, :shared] = corrected
            _write_back(rows, self.mine.get(term.name, {}), mine)
        slots = {name: value[rows] for name, value in self.slots.items()}
        optimizer_step(self.job.optimizer, flat, grad, slots, count_c, lr)
        _write_back(rows, self.slots, slots)
        for term in self.job.terms:
            if not isinstance(term, PostStep):
                continue
            mine = {n: v[rows] for n, v in self.mine.get(term.name, {}).items()}
            term.post_step(at, self.down.get(term.name, {}), mine)
            _write_back(rows, self.mine.get(term.name, {}), mine)
        return loss

    def _pull(self, rows: slice | Tensor, flat: Tensor, grad: Tensor) -> Pull | None:
        """What the terms add to a gradient, where a GPU can take the whole step at once."""
        job = self.job
        if (
            not job.terms
            or not cuda_graph_safe(job)
            or isinstance(rows, Tensor)
            or not pull_fits(job.optimizer, flat, grad)
        ):
            return None
        mine = {term: {name: value[rows] for name, value in own.items()} for term, own in self.mine.items()}
        return Pull.of(job.terms, self.start_cP[:, : self.network.layout.shared], self.down, mine)

    def _write_update(self) -> None:
        """Replace the shared columns by the scaled update, while they are still in the cache."""
        layout = self.network.layout
        update_cP, start_cP = self.flat_cP[:, : layout.shared], self.start_cP[:, : layout.shared]
        if self.weights is not None:
            self._write_from_copy(self.weights, start_cP)
        elif self.native is None or self.job.terms or self.job.limit:  # else C has written it
            update_cP.sub_(start_cP)
            self.finite_c = None
        scale_c = None if self.job.scale_C is None else self.job.scale_C[self.rows]
        if self.job.limit is not None:
            scale_c = self.job.limit.scale(self.steps_c)
        if scale_c is not None:
            update_cP.mul_(self._there(scale_c)[:, None])
            self.finite_c = None
        self.result.finite_C[self.rows] = torch.isfinite(update_cP.sum(1)) if self.finite_c is None else self.finite_c

    def _write_from_copy(self, weights: ChunkWeights, start_cP: Tensor) -> None:
        layout = self.network.layout
        starts, columns = layout.views(start_cP), layout.views(self.flat_cP)
        for slot in layout.slots:
            if slot.start < layout.shared:
                weights.write_update(slot.name, starts[slot.name], columns[slot.name])
            else:
                columns[slot.name].copy_(weights.weights[slot.name])


def _write_back(rows: slice | Tensor, home: Tensors, changed: Tensors) -> None:
    """Write rows back to `home` unless they are views of it: copies by index, or tensors that a part has replaced."""
    for name, value in changed.items():
        if isinstance(rows, Tensor) or value.data_ptr() != home[name][rows].data_ptr():
            home[name][rows] = value
