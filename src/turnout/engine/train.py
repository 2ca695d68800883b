"""Local training of a cohort: advanced in chunks, chunks spread over threads.

A job's clients come sorted by work, most first, so that at each step the clients still at work are a prefix of their
chunk. The same code trains with any of the three gradients of engine/gradients.py, and the result does not depend on
chunk size, order or threads beyond rounding. Plain SGD on small models is done in C (engine/native.py).

Shape letters: C clients of the cohort, c of a chunk, P parameters (all columns), B batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from turnout.engine.batches import Batches, address_batches
from turnout.engine.chunk import Chunk
from turnout.engine.crew import Crew
from turnout.engine.gradients import Gradients, Network
from turnout.engine.job import Job, Trained, plain_sgd
from turnout.engine.native.steps import Native, Rate
from turnout.layout import Slot
from turnout.machine.clock import stage
from turnout.parts.optimizers import SGD, Optimizer
from turnout.types import Samples

BLOCK = 256  # clients whose batch orders are laid out together
_SMALL = 1 << 20  # bytes a step of the whole cohort touches, below which threads do not pay
_LITTLE = 16 << 20  # bytes that all steps of a cohort touch, below which they are done in C in this thread
_TRAILS = 32 << 20  # bytes of trails in a chunk: the more clients, the larger the products with the common start


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
        with stage("local training"):
            result, native = _blank(job, self._room(job), self.network.layout.slots), self._native(job)

            def advance(gradients: Gradients, piece: tuple[slice, Batches]) -> None:
                Chunk(job, self.network, gradients, *piece, result, native).run()

            self.crew.map(advance, self._pieces(job, self._share(job) if native else self._chunk(job)))
        return result

    def _native(self, job: Job) -> tuple[Native, Rate] | None:
        """The steps in C, where this job's are like that: plain SGD, with terms that are springs or none."""
        shared, plain = self.network.layout.shared, plain_sgd(job.optimizer) and not job.magnitudes
        if self.native is None or not plain or not self.native.takes(job.samples, job.start_P):
            return None
        assert isinstance(job.optimizer, SGD)
        start_cP = job.start_P[:, :shared] if job.start_P.dim() == 2 else job.start_P[None, :shared]
        if job.start_P.dim() == 2 and len(start_cP) == 1:
            start_cP = start_cP.expand(2, -1)  # rows of their own, whatever company a client has
        springs = [term.spring(start_cP, job.down.get(term.name, {})) for term in job.terms]
        there = [spring for spring in springs if spring is not None]
        if len(there) < len(springs):
            return None
        keep = 1 - job.lr * job.optimizer.weight_decay
        return self.native, Rate.of(job.lr, keep, there, job.start_P)

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
        if (
            self.fixed and not job.start_P.is_cuda
        ) or clients * self.cost < _SMALL:  # on a GPU: at most the chunk given
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
