"""A chunk of clients going through its local steps, with any of the gradients of engine/gradients.py or in C.

Shape letters: C clients of the cohort, c of the chunk, P parameters (all columns), J steps, k dropout keys, B batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from turnout.engine.batches import Batch, Batches, BatchLoader
from turnout.engine.by_hand import ByHand, ChunkWeights
from turnout.engine.dropout import dropout_keys
from turnout.engine.gradients import Gradients
from turnout.engine.job import Job, Trained, cuda_graph_safe, plain_sgd
from turnout.engine.kernels.graphs import GraphCache, storage
from turnout.engine.kernels.native import NativeJob
from turnout.engine.kernels.optimizer_steps import Pull, Spring, optimizer_step, pull_fits, pulled_descent
from turnout.engine.network import Network
from turnout.engine.own_samples import OwnSamples, batch_gradient, fisher, mean_gradient
from turnout.machine.memory import to_device
from turnout.parts.optimizers import SGD
from turnout.parts.terms.base import At, PostStep
from turnout.parts.updates import squared_lengths
from turnout.rng import key
from turnout.types import Tensors

NATIVE_STEPS = 16  # steps in C between two checks of a job's limit


class Chunk:
    """Trains a few clients of a job and writes the outcome into their rows of `result`."""

    def __init__(
        self, job: Job, network: Network, gradients: Gradients, rows: slice, batches: Batches, result: Trained,
        native: NativeJob | None = None,
    ):  # fmt: skip
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
        if network.dropout_keys or network.draws or network.calls_dropout:
            keys_cJk = dropout_keys(job.seed, job.t, self.client_c, batches.size_cJ.shape[1], network.keys)
            self.keys_cJk = to_device(keys_cJk, job.samples.x.device)
        self.native = native
        self.weights: ChunkWeights | None = None  # outside the cohort's matrix, if plain SGD is faster there
        fused = native is None and job.fused
        if fused and isinstance(gradients, ByHand):
            samples = min(job.factored_samples, sum(self.loader.width_J))
            self.weights = gradients.chunk_weights(self.start_cP, len(self.client_c), samples)
        if self.weights is None and native is None:
            self.flat_cP.copy_(self.start_cP)
        self.graphs = gradients.graphs if self.flat_cP.is_cuda else None
        self.spring: Spring | None = None  # the terms' part of a plain SGD step, if a GPU does it with the gradient
        sprung = bool(job.terms) and not job.needs_gradient and cuda_graph_safe(job)
        if self.graphs is not None and isinstance(gradients, ByHand) and sprung:
            start_cP, pull = self.start_cP[:, : network.layout.shared], None
            if pull_fits(job.optimizer, self.flat_cP, self.flat_cP):
                pull = Pull.of(job.terms, start_cP, self.server_term_states, self.term_states)
            self.spring = None if pull is None else Spring.of(pull, job.lr, self.graphs)
        self.in_one = fused or self.spring is not None  # a step needs no gradient by itself
        if self.graphs is not None:
            self.graphs.keep("matrix", result.flat_CP)
            self.hold_rows(self.graphs, states_only=self.in_one)
        self.grad_cP: Tensor | None = None
        if not self.in_one and native is None:
            held = None if self.graphs is None else self.graphs.hold("gradient", self.flat_cP, copy=False)
            self.grad_cP = torch.empty_like(self.flat_cP) if held is None else held
        self.loss_c = result.loss_C[rows]
        # Whether each update is finite, and its squared length, if the steps in C have reported it.
        self.reported: tuple[Tensor, Tensor] | None = None
        self.grouped = gradients.sees_padding and network.has_batch_statistics()

    def run(self) -> None:
        """All local steps, then the terms' uploads and states, then the update."""
        if self.native is None:
            self._run_steps()
        else:
            momentum = self.slots.get("momentum")  # C keeps -lr times it, and rounding must not depend on the calls
            if momentum is not None:
                momentum.mul_(-self.native.lr)
            self._run_native(self.native)
            if momentum is not None:
                momentum.mul_(-1 / self.native.lr)
        for sums in (self.result.loss_C, *self.result.magnitude.values()):
            sums[self.rows].div_(self.steps_there_c.clamp(min=1))
        self.result.count_C[self.rows].add_(self.steps_there_c)
        if self.job.terms:
            self.finish_terms()
        if self.graphs is not None:
            self.put_rows_back(states_only=self.in_one)
        self._write_update()

    def _run_native(self, native: NativeJob) -> None:
        """The steps in C: all at once, or if the job has a limit some at a time."""
        samples, batches, limit = self.job.samples, self.batches, self.job.limit
        count_c = self.result.count_C[self.rows]
        if limit is None:
            shared = 0 if self.job.terms else self.network.layout.shared  # terms need the weights, not the update
            given = (samples, batches, self.steps_c, self.start_cP, self.flat_cP, self.loss_c)
            beside = (self.slots, count_c, self.keys_cJk, self.states)
            self.reported = native.train(*given, *beside, shared)
            return
        self.flat_cP.copy_(self.start_cP)
        for first in range(0, int(self.steps_c.max()), NATIVE_STEPS):
            if first and limit.reached():
                self._stop_after(first)
                return
            some = slice(first, first + NATIVE_STEPS)
            part = Batches(batches.row_cJB[:, some], batches.size_cJ[:, some])
            left_c = (self.steps_c - first).clamp(0, NATIVE_STEPS)
            keys_cJk = None if self.keys_cJk is None else self.keys_cJk[:, some]
            given = (samples, part, left_c, self.flat_cP.clone(), self.flat_cP, self.loss_c)
            native.train(*given, self.slots, count_c + first, keys_cJk, self.states)

    def _stop_after(self, steps: int) -> None:
        """No client takes more steps than these."""
        self.steps_c = self.steps_c.clamp(max=steps)
        self.steps_there_c = to_device(self.steps_c, self.flat_cP.device)
        self.result.steps_C[self.rows] = self.steps_c
        if self.job.terms:
            self.progress_c = self.there(self.job.optimizer.progress(self.steps_c))

    def _run_steps(self) -> None:
        steps = self.steps_c.tolist()
        active = len(steps)
        for step in range(steps[0] if steps else 0):
            if step and self.job.limit is not None and self.job.limit.reached():
                self._stop_after(step)
                return
            while steps[active - 1] <= step:
                active -= 1
            for rows in self._groups(step, active):
                self._step(step, rows, active)

    def _groups(self, step: int, active: int) -> list[slice | Tensor]:
        """Clients that take this step together: all active ones, or those of equal batch size if padding matters."""
        plain = self.job.fused and plain_sgd(self.job.optimizer) and not getattr(self.job.optimizer, "weight_decay", 0)
        if self.graphs is not None and plain and not self.states:
            # Some that have finished take part with empty batches: so few sizes occur, and each is captured once.
            active = min(captured_size(active), len(self.client_c))
        if not self.grouped or not self.loader.short_J[step]:
            return [slice(0, active)]
        size_c = self.batches.size_cJ[:active, step]
        return [(size_c == size).nonzero().squeeze(1) for size in size_c.unique().tolist()]

    def _step(self, step: int, rows: slice | Tensor, active: int) -> None:
        batch, job, gradients = self.batch(step, rows, active), self.job, self.gradients
        states = {name: value[rows] for name, value in self.states.items()}
        if self.weights is not None and isinstance(rows, slice) and isinstance(gradients, ByHand):
            assert isinstance(job.optimizer, SGD)
            everyone = rows.stop == len(self.client_c)
            weights = self.weights if everyone else self.weights.first(rows.stop)
            loss = gradients.descend_chunk(weights, states, batch, job.lr, job.optimizer.weight_decay)
            (self.loss_c if everyone else self.loss_c[rows]).add_(loss)
            return
        flat = self.flat_cP[rows]
        if self.spring is not None and isinstance(gradients, ByHand):
            loss = gradients.descend_sprung(flat, states, batch, job.lr, self.spring.first(len(flat)))
        elif self.grad_cP is None:
            assert isinstance(job.optimizer, SGD)
            loss = gradients.descend(flat, states, batch, job.lr, job.optimizer.weight_decay)
        else:
            loss = self._general_step(step, rows, flat, states, batch)
        if isinstance(rows, Tensor):  # indexing by a tensor copies: write the copies back
            self.flat_cP[rows] = flat
            for name, value in states.items():
                self.states[name][rows] = value
        self.loss_c[rows] += loss

    def _general_step(self, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch) -> Tensor:
        """Gradient, then the terms' corrections (shared columns only), then the optimizer; on a GPU as one graph."""
        assert self.grad_cP is not None
        count_c = self.result.count_C[self.rows][rows] + step + 1
        if self.graphs is None or isinstance(rows, Tensor) or not cuda_graph_safe(self.job):
            return self._corrected_step(step, rows, flat, states, batch, count_c, self.job.lr)

        def corrected(lr: Tensor, count_c: Tensor, *tensors: Tensor) -> Tensor:
            return self._corrected_step(step, rows, flat, states, batch.with_tensors(tensors), count_c, lr)

        beside = [*states.values(), self.start_cP, self.grad_cP, *(value[rows] for value in self.slots.values())]
        for kept in (*self.term_states.values(), *self.server_term_states.values()):
            beside += kept.values()
        lr = torch.full((), self.job.lr, device=flat.device, dtype=flat.dtype)
        also = (self.job.optimizer, tuple(self.job.terms), step == 0, batch.mask_cB is None, batch.keys_ck is None)
        return self.graphs.run(corrected, [flat, *beside], [lr, count_c, *batch.tensors()], also)

    def _corrected_step(
        self, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch, count_c: Tensor, lr: Any
    ) -> Tensor:  # fmt: skip
        assert self.grad_cP is not None
        job, grad = self.job, self.grad_cP[rows]
        loss = batch_gradient(self.gradients, flat, states, batch, grad, job.at_once)
        if job.clip is not None:
            grad.mul_((job.clip / (grad.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))  # as torch's clip_grad_norm_
        shared, at = self.network.layout.shared, replace(self.term_view(step, rows, flat, states, batch), lr=lr)
        for slot in self.network.layout.slots if job.magnitudes else ():
            size_c = grad[:, slot.start : slot.start + slot.size].abs().mean(1)
            self.result.magnitude[slot.name][self.rows][rows] += size_c
        if job.terms and cuda_graph_safe(job) and isinstance(rows, slice) and pull_fits(job.optimizer, flat, grad):
            mine = {term: {name: value[rows] for name, value in own.items()} for term, own in self.term_states.items()}
            pull = Pull.of(job.terms, self.start_cP[:, :shared], self.server_term_states, mine)
            if pull is not None:  # a GPU takes the whole step at once
                pulled_descent(flat, grad, pull, lr)
                return loss
        for term in job.terms:
            home = self.term_states.get(term.name, {})
            own = {n: v[rows] for n, v in home.items()}
            corrected = term.transform_grad(grad[:, :shared], at, self.server_term_states.get(term.name, {}), own)
            if corrected.data_ptr() != grad.data_ptr():
                grad[:, :shared] = corrected
            _write_back(rows, home, own)
        slots = {name: value[rows] for name, value in self.slots.items()}
        optimizer_step(job.optimizer, flat, grad, slots, count_c, lr)
        _write_back(rows, self.slots, slots)
        for term in (term for term in job.terms if isinstance(term, PostStep)):
            home = self.term_states.get(term.name, {})
            own = {n: v[rows] for n, v in home.items()}
            term.post_step(at, self.server_term_states.get(term.name, {}), own)
            _write_back(rows, home, own)
        if job.held_CP is not None and job.terms:  # the gradient is 0 there, but a term may pull
            flat.mul_(job.held_CP[self.rows][rows])
        return loss

    def _write_update(self) -> None:
        """Replace the shared columns by the scaled update, while they are still in the cache."""
        layout, job = self.network.layout, self.job
        update_cP, start_cP = self.flat_cP[:, : layout.shared], self.start_cP[:, : layout.shared]
        if self.weights is not None:
            starts, columns = layout.views(start_cP), layout.views(self.flat_cP)
            for slot in layout.slots:
                if slot.start < layout.shared:
                    self.weights.write_update(slot.name, starts[slot.name], columns[slot.name])
                else:
                    columns[slot.name].copy_(self.weights.weights[slot.name])
        elif self.native is None or job.terms or job.limit:  # else C has written it
            update_cP.sub_(start_cP)
            self.reported = None
        scale_c = None if job.scale_C is None else job.scale_C[self.rows]
        if job.limit is not None:
            scale_c = job.limit.scale(self.steps_c)
        if scale_c is not None:
            update_cP.mul_(self.there(scale_c)[:, None])
            self.reported = None
        if self.reported is None and not job.lengths:
            self.result.finite_C[self.rows] = torch.isfinite(update_cP.sum(1))
            return
        if self.reported is None:  # one pass for both; a length that is too large for a float is not finite either
            squared_c = squared_lengths(update_cP)
            self.reported = torch.isfinite(squared_c), squared_c
        self.result.finite_C[self.rows] = self.reported[0]
        if job.lengths:
            self.result.squared_C[self.rows] = self.reported[1]

    def there(self, value_c: Tensor) -> Tensor:
        """Numbers of clients in the weights' type, on their device."""
        return to_device(value_c, self.flat_cP.device, self.flat_cP.dtype)

    @cached_property
    def loader(self) -> BatchLoader:
        """Samples step by step; made when first used, because the steps in C need none."""
        trim = not self.network.keys  # a dropout mask depends on how many positions there are
        return BatchLoader(self.job.samples, self.batches, self.job.start_P.dtype, trim)

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
        clients, everyone = len(self.job.client_C), slice(0, len(self.client_c))
        for term in self.job.terms:
            at, kept = self.term_view(0, everyone, self.flat_cP, self.states), self.term_states.get(term.name, {})
            up, mine = term.finish(at, self.server_term_states.get(term.name, {}), kept)
            sent = self.result.uploads.setdefault(term.name, {}) if up else {}
            for name, value in up.items():  # first, since they may be rows that are about to change
                if len(value) == clients and self._is_new(value):
                    sent[name] = value
                else:
                    sent.setdefault(name, value.new_zeros(clients, *value.shape[1:]))[self.rows] = value
            moved = {n for n, v in mine.items() if any(n != m and storage(v) == storage(k) for m, k in kept.items())}
            for name, value in {n: v.clone() if n in moved else v for n, v in mine.items()}.items():
                alike = value.shape == kept[name].shape and value.dtype == kept[name].dtype
                if alike and len(value) == clients and self._is_new(value):
                    kept[name] = self.result.term_states[term.name][name] = value
                else:
                    kept[name].copy_(value)

    def _is_new(self, value: Tensor) -> bool:
        """Whether a tensor shares no memory with tensors that terms were shown or have already sent."""
        shown = [self.flat_cP, self.start_cP, *self.states.values(), self.progress_c, self.examples_c]
        for rows in (*self.term_states.values(), *self.server_term_states.values(), *self.result.uploads.values()):
            shown += rows.values()
        return storage(value) not in map(storage, shown)


def captured_size(count: int) -> int:
    """How many clients a step for `count` of them is captured for: the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    >>> [captured_size(n) for n in (1, 3, 5, 7, 9, 13, 17)]
    [1, 3, 6, 8, 12, 16, 24]
    """
    apart = 1 << max(0, count.bit_length() - 2)
    return -(-count // apart) * apart


def _write_back(rows: slice | Tensor, home: Tensors, changed: Tensors) -> None:
    """Write rows back to `home` unless they are views of it: copies by index, or tensors that a part has replaced."""
    for name, value in changed.items():
        if isinstance(rows, Tensor) or value.data_ptr() != home[name][rows].data_ptr():
            home[name][rows] = value
