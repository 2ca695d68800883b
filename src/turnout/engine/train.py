"""Local training of a cohort: advanced in chunks, chunks spread over threads.

A job's clients come sorted by work, most first, so that at each step the clients still at work are a prefix of their
chunk. The same code trains with any of the three gradients of engine/gradients.py, and the result does not depend on
chunk size, order or threads beyond rounding.

Shape letters: C clients of the cohort, c of a chunk, P parameters (all columns), B batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.engine.batches import Batches, Feed, address_batches
from turnout.engine.crew import Crew
from turnout.engine.dropout import dropout_keys
from turnout.engine.gradients import ByHand, Gradients, Network
from turnout.engine.layout import Slot
from turnout.engine.native import Native, Rate
from turnout.engine.own_samples import OwnSamples, fisher, mean_gradient
from turnout.engine.replays import Batch
from turnout.local import SGD, Optimizer
from turnout.rng import key
from turnout.terms import At, Term
from turnout.types import Samples, Tensors

BLOCK = 256  # clients whose batch orders are laid out together
_SMALL = 1 << 20  # bytes a step of the whole cohort touches, below which threads do not pay
_LITTLE = 16 << 20  # bytes that all steps of a cohort touch, below which they are done in C in this thread
_TRAILS = 32 << 20  # bytes of trails in a chunk: the more clients, the larger the products with the common start


def plain_sgd(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, SGD) and not optimizer.momentum


@dataclass(frozen=True)
class Job:
    """One round's local work for the clients that turned up, in descending order of steps."""

    client_C: Tensor
    steps_C: Tensor  # mini-batches each will finish
    samples: Samples  # of these clients, in this order
    start_P: Tensor  # [P], or [C, P] where clients start from different weights
    states: Tensors  # name -> [...] broadcast to everyone, or [C, ...] if listed in `own_states`
    lr: float
    batch_size: int
    drop_single: bool
    seed: int
    t: int
    optimizer: Optimizer
    scale_C: Tensor | None = None  # what each multiplies its update by before sending it
    own_states: frozenset[str] = frozenset()
    slots: Tensors = field(default_factory=dict)  # optimizer state carried in: name -> [C, P], the job's to write on
    count_C: Tensor | None = None  # optimizer steps carried in
    terms: Sequence[Term] = ()
    down: dict[str, Tensors] = field(default_factory=dict)
    mine: dict[str, Tensors] = field(default_factory=dict)  # term -> name -> [C, ...]
    magnitudes: bool = False  # whether the mean size of each parameter's gradient is wanted

    @property
    def fused(self) -> bool:
        """Plain SGD without terms: gradient and update are one operation."""
        return plain_sgd(self.optimizer) and not self.terms and not self.magnitudes

    @property
    def followed(self) -> int:
        """How many samples' gradients make up a client's update at most; 0 where it is more than their sum, or where
        clients start from different weights (a chunk of one of them looks like a common start)."""
        plain = self.fused and isinstance(self.optimizer, SGD) and not self.optimizer.weight_decay
        common = plain and self.start_P.dim() == 1
        return int(self.steps_C.max()) * self.batch_size if common and len(self.steps_C) else 0


@dataclass
class Trained:
    """The cohort after local training, in the job's order of clients.

    `flat_CP` holds the scaled update (trained - start) in the shared columns, the trained values in the personal ones.
    """

    flat_CP: Tensor
    states: Tensors
    slots: Tensors
    count_C: Tensor
    loss_C: Tensor  # mean over the local steps
    finite_C: Tensor  # whether the update is a number throughout
    up: dict[str, Tensors]
    mine: dict[str, Tensors]
    magnitude: Tensors  # parameter -> mean |gradient| over entries and local steps [C], where wanted


class Trainer:
    """Trains jobs: chunks of at most `chunk` clients, spread over a crew of threads."""

    def __init__(
        self, network: Network, crew: Crew, chunk: int, cost: int = 1 << 30, fixed: bool = True,
        native: Native | None = None,
    ):  # fmt: skip
        """`cost`: bytes a client's step touches. Unless `fixed`, chunks shrink so that every thread has one. `native`:
        the steps of plain SGD in C, where there are any."""
        self.network, self.crew, self.chunk, self.cost, self.fixed = network, crew, chunk, cost, fixed
        self.native = native
        self._matrix: Tensor | None = None

    @property
    def gradients(self) -> Gradients:
        return self.crew.first

    @property
    def threads(self) -> int:
        return self.crew.threads

    def title(self, optimizer: Optimizer, springs: bool = True) -> str:
        """How clients train with this optimizer, and with terms that are all springs or not."""
        return "native" if self.native and plain_sgd(optimizer) and springs else self.gradients.title

    def train(self, job: Job) -> Trained:
        """Train every client of a job."""
        result = _blank(job, self._room(job), self.network.layout.slots)

        def advance(gradients: Gradients, piece: tuple[slice, Batches]) -> None:
            Chunk(job, self.network, gradients, *piece, result, native).run()

        native = self._native(job)
        self.crew.map(advance, self._pieces(job, self._share(job) if native else self._chunk(job)))
        return result

    def _native(self, job: Job) -> tuple[Native, Rate] | None:
        """The steps in C, where this job's are like that: plain SGD, with terms that are springs or none."""
        shared, plain = self.network.layout.shared, plain_sgd(job.optimizer) and not job.magnitudes
        if self.native is None or not plain or not self.native.takes(job.samples, job.start_P):
            return None
        assert isinstance(job.optimizer, SGD)
        start_cP = job.start_P[:, :shared] if job.start_P.dim() == 2 else job.start_P[None, :shared]
        springs = [term.spring(start_cP, job.down.get(term.name, {})) for term in job.terms]
        there = [spring for spring in springs if spring is not None]
        if len(there) < len(springs):
            return None
        keep = 1 - job.lr * job.optimizer.weight_decay
        return self.native, Rate.of(job.lr, keep, there, self.network.layout.width)

    def _share(self, job: Job) -> int:
        """Clients that a thread takes at once where they train one after another: a few, for those who come first have
        most to do; everybody where there is little to do."""
        clients, turns = len(job.client_C), 8
        if clients * self.cost * int(job.steps_C.max()) < _LITTLE:
            return clients
        return -(-clients // (turns * self.crew.threads))

    def _room(self, job: Job) -> Tensor:
        """The cohort's matrix: the same memory round after round, so that captured steps of a GPU stay valid."""
        clients, width, start = len(job.client_C), self.network.layout.width, job.start_P
        if self._matrix is None or len(self._matrix) < clients:
            # on a GPU rows that start at a multiple of 64 bytes are read four numbers at a time
            stride = -(-width // 16) * 16 if start.is_cuda else width
            self._matrix = torch.empty(clients, stride, dtype=start.dtype, device=start.device)
        return self._matrix[:clients, :width]

    def _pieces(self, job: Job, chunk: int) -> Iterator[tuple[slice, Batches]]:
        """Rows of the job with their batches; batches are laid out a block at a time, as the crew gets there."""
        for first in range(0, len(job.client_C), BLOCK):
            block = slice(first, min(first + BLOCK, len(job.client_C)))
            batches = _batches(job, block)
            for start in range(block.start, block.stop, chunk):
                stop = min(start + chunk, block.stop)
                own = slice(start - first, stop - first)
                yield slice(start, stop), Batches(batches.row_cJB[own], batches.size_cJ[own])

    def _chunk(self, job: Job) -> int:
        """Clients that advance together. Small work stays in one piece: a thread of its own would cost more."""
        clients = len(job.client_C)
        if self.fixed or clients * self.cost < _SMALL:
            return self.chunk
        trail = self.gradients.trail_bytes(job.start_P[None], job.followed) if job.followed else 0
        most = max(self.chunk, _TRAILS // trail) if trail else self.chunk
        turns = -(-clients // (most * self.crew.threads))  # every thread has as many chunks, of the same size
        return -(-clients // (turns * self.crew.threads))


def _blank(job: Job, flat_CP: Tensor, parameters: Sequence[Slot]) -> Trained:
    """Everybody at the start, with the tensors that training will write into."""
    clients, device = len(job.client_C), job.start_P.device
    slots = {n: job.slots[n] if n in job.slots else torch.zeros_like(flat_CP) for n in job.optimizer.slots}
    mine = {term: {n: v.clone() for n, v in rows.items()} for term, rows in job.mine.items()}
    states = {
        name: (value.clone() if name in job.own_states else value.expand(clients, *value.shape).clone())
        for name, value in job.states.items()
    }
    count_C = torch.zeros(clients, dtype=torch.int64) if job.count_C is None else job.count_C.clone()
    loss_C = torch.zeros(clients, dtype=job.start_P.dtype, device=device)
    finite_C = torch.ones(clients, dtype=torch.bool, device=device)
    magnitude = {slot.name: torch.zeros_like(loss_C) for slot in parameters} if job.magnitudes else {}
    return Trained(flat_CP, states, slots, count_C.to(device), loss_C, finite_C, {}, mine, magnitude)


def _batches(job: Job, block: slice) -> Batches:
    """The batch orders of a block of clients, on the device of the pool."""
    start_C, count_C = job.samples.start_C, job.samples.count_C
    first, last = int(start_C[block.start]), int(start_C[block.stop - 1] + count_C[block.stop - 1])
    samples = Samples(job.samples.x, job.samples.y, job.samples.row_R[first:last], count_C[block])
    client_c, steps_c = job.client_C[block], job.steps_C[block]
    args = (samples, client_c, steps_c, job.batch_size, job.drop_single, job.seed, job.t)
    batches = address_batches(*args)
    return Batches(batches.row_cJB.to(job.samples.x.device), batches.size_cJ)


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
        self.feed = Feed(job.samples, batches, job.start_P.dtype)
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
        (native, rate), batches = self.native, self.feed.batches
        self.loss_c += native.train(self.job.samples, batches, self.steps_c, self.start_cP, rate, self.flat_cP)

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
        size_c = self.feed.batches.size_cJ[:active, step]
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
        if self.loose is None:
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
