"""Local training of a cohort, in chunks of clients that are spread over threads.

A job's clients are sorted by steps, most first. The result depends on chunk size, order and threads only by rounding.
SGD and Adam on small models are done in C (kernels/native.py).

Shape letters: C clients of the cohort, c of a chunk, P parameters (all columns), B batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from turnout.engine.batches import Batches, address_batches
from turnout.engine.by_hand import ByHand
from turnout.engine.chunk import Chunk
from turnout.engine.gradients import Gradients, WorkerPool
from turnout.engine.job import Job, Trained, cuda_graph_safe
from turnout.engine.joined import Joined
from turnout.engine.kernels.native import NativeJob, NativeSteps, in_c
from turnout.engine.network import Network
from turnout.layout import Slot
from turnout.machine.memory import to_device
from turnout.machine.triton_tools import rehearse
from turnout.parts.local import Local
from turnout.parts.optimizers import Optimizer
from turnout.parts.terms.base import as_quadratic
from turnout.types import Samples

BLOCK = 256  # clients whose batches are laid out at once
BESIDE = 3  # tensors as large as the weights that a step allocates: a gradient, and two of the optimizer
_SMALL_STEP = 1 << 20  # bytes of one step of the whole cohort, below which a chunk is not split over threads
_ORDERS = 64 << 20  # bytes of batch orders laid out at once, unless a single client's take more
_SMALL_JOB = 1 << 20  # bytes of all steps of a cohort, below which the C steps run in the calling thread
_CALL = 4 << 30  # bytes of steps that C makes in a second or so
_MANY_SAMPLES = 1 << 16  # from which on their order is found by all threads (below, it takes less than a millisecond)
_FACTORED_ROOM = 32 << 20  # bytes of factored weights in a chunk: with more clients, products with W0 are larger


class Trainer:
    """Trains jobs in chunks of at most `chunk` clients, spread over a pool of threads.

    network   the model
    workers   the pool of threads, each with an engine
    chunk     the most clients of a chunk
    cost      bytes of a client's step
    fixed     whether chunks have exactly this size; else they may be smaller, so that every thread has work, or larger
              for factored weights
    native    the steps in C, if they support the model
    """

    def __init__(
        self, network: Network, workers: WorkerPool, chunk: int, cost: int = 1 << 30, fixed: bool = True,
        native: NativeSteps | None = None,
    ):  # fmt: skip
        self.network, self.workers, self.chunk, self.cost, self.fixed = network, workers, chunk, cost, fixed
        self.gradients, self.threads, self.native = workers.first, workers.threads, native
        self._matrix: Tensor | None = None
        self._rehearsed = False

    def title(self, optimizer: Optimizer, springs: bool = True) -> str:
        """The name of the engine used with this optimizer; `springs`: whether all terms are springs (see `_native`)."""
        return "native" if self.native and in_c(optimizer) and springs else self.gradients.title

    def step_bytes(self, clients: int, optimizer: Optimizer) -> int:
        """Bytes of the steps that are made at once: in C one client's a thread, else a chunk's a thread."""
        weights = [value for value in self.network.module.parameters() if value.requires_grad]
        if self.title(optimizer) == "native":  # which also keeps a copy of the first weights
            return min(self.threads, clients) * (self.cost + sum(value.nbytes for value in weights))
        beside = BESIDE * sum(value.nbytes for value in weights if not value.is_cuda)  # a GPU's kernels work in place
        return min(self.chunk * self.threads, clients) * (self.cost + beside)

    def train(self, job: Job) -> Trained:
        """Train every client of a job."""
        if job.start_P.is_cuda and not self._rehearsed and len(job.client_C):
            rehearse(partial(self.first_step, job))
            self._rehearsed = True
        result = _blank(job, self._room(job), self.network.layout.slots)
        work = self.cost * max([1, *job.steps_C[:1].tolist()])  # bytes of all steps of the client with the most
        native = self._native(job, work)
        if native is not None:  # about a second's work in one call of C, so that an interrupt is noticed, but some for
            for rows, batches in self._pieces(job, max(4 * self.threads, _CALL // work)):  # every thread
                Chunk(job, self.network, self.gradients, rows, batches, result, native).run()
            return result

        def advance(gradients: Gradients, piece: tuple[slice, Batches]) -> None:
            Chunk(job, self.network, gradients, *piece, result).run()

        self.workers.map(advance, self._pieces(job, self._chunk(job)))
        return result

    def first_step(self, job: Job) -> None:
        """The first step of the first chunk, without effect, if every part's step depends on tensors alone."""
        if self.gradients.graphs is None or not cuda_graph_safe(job):
            return
        rows, batches = next(self._pieces(job, self._chunk(job)))
        own, twin = job.first_step(rows), self.gradients.twin()
        result = _blank(own, self._room(job)[rows], self.network.layout.slots)
        try:
            Chunk(own, twin.network, twin, slice(0, len(own.client_C)), batches, result).run()
        finally:  # its tensors are large, and cycles in an engine would keep them alive for a while
            if twin.graphs is not None:
                twin.graphs.forget()

    def _native(self, job: Job, work: int = 1) -> NativeJob | None:
        """The steps in C if they support this job: SGD or Adam; with plain SGD springs (k w - f) as terms.

        `work`: bytes of all steps of the client with the most.
        """
        shared = self.network.layout.shared
        if (
            self.native is None
            or job.magnitudes
            or job.needs_gradient
            or not self.native.takes(job.samples, job.start_P)
        ):
            return None
        start_cP = job.start_P[:, :shared] if job.start_P.dim() == 2 else job.start_P[None, :shared]
        if job.start_P.dim() == 2 and len(start_cP) == 1:
            start_cP = start_cP.expand(2, -1)  # one client's own start must not look like a common one (one row)
        springs = [as_quadratic(term, start_cP, job.server_term_states.get(term.name, {})) for term in job.terms]
        threads = 1 if len(job.client_C) * work < _SMALL_JOB else self.threads
        return NativeJob.of(self.native, job.optimizer, job.lr, springs, job.start_P, threads)

    def _room(self, job: Job) -> Tensor:
        """The cohort's matrix. It is kept between rounds: CUDA graphs are captured with its address."""
        clients, width, start = len(job.client_C), self.network.layout.width, job.start_P
        if self._matrix is None or len(self._matrix) < clients:
            # a GPU reads four numbers at a time from rows that start at a multiple of 64 bytes
            stride = -(-width // 16) * 16 if start.is_cuda else width
            self._matrix = torch.empty(clients, stride, dtype=start.dtype, device=start.device)
        return self._matrix[:clients, :width]

    def _pieces(self, job: Job, chunk: int) -> Iterator[tuple[slice, Batches]]:
        """Each chunk's rows of the job and its batches; batches are laid out lazily, a block of clients at a time.

        A block is as long as its client with the most steps, and clients are sorted by steps. So if one has very many,
        blocks and chunks are smaller: the other clients are not padded to its length.
        """
        first, clients, pool, count_C = 0, len(job.client_C), job.samples, job.samples.count_C
        while first < clients:
            last = min(first + block_size(max(1, int(job.steps_C[first])), job.batch_size), clients)
            block, samples = slice(first, last), pool
            if last - first < clients:
                start_C = pool.start_C
                row_R = pool.row_R[int(start_C[first]) : int(start_C[last - 1] + count_C[last - 1])]
                samples = Samples(pool.x, pool.y, row_R, count_C[block])
            threads = self.threads if len(samples.row_R) >= _MANY_SAMPLES else 1
            who = (samples, job.client_C[block], job.steps_C[block])
            batches = address_batches(*who, job.batch_size, job.drop_single, job.seed, job.t, threads)
            row_cJB, size_cJ = to_device(batches.row_cJB, pool.x.device), batches.size_cJ
            for start in range(first, last, chunk):
                stop = min(start + chunk, last)
                own = slice(start - first, stop - first)
                yield slice(start, stop), Batches(row_cJB[own], size_cJ[own])
            first = last

    def _chunk(self, job: Job) -> int:
        """Clients per chunk. A small cohort is not split further: starting threads would cost more."""
        clients = len(job.client_C)
        # by memory `chunk` is an upper bound
        fixed = self.fixed and not job.start_P.is_cuda and not isinstance(self.gradients, Joined)
        if fixed or clients * self.cost < _SMALL_STEP:
            return self.chunk
        samples = job.factored_samples
        hand = self.gradients if isinstance(self.gradients, ByHand) else None
        factored = hand.factored_bytes(job.start_P[None], samples) if hand and samples else 0
        most = max(self.chunk, _FACTORED_ROOM // factored) if factored else self.chunk
        turns = -(-clients // (most * self.threads))  # every thread gets as many chunks, of equal size
        return -(-clients // (turns * self.threads))


def block_size(steps: int, batch_size: int) -> int:
    """The number of clients whose batches are laid out together, if the first of them takes so many steps.

    >>> block_size(100, 10), block_size(500_000, 20)
    (256, 1)
    """
    return max(1, min(BLOCK, _ORDERS // (8 * steps * batch_size)))


def order_bytes(count_C: Tensor, local: Local, drop_single: bool, threads: int = 1) -> int:
    """Bytes of the batch orders that are laid out at once for a cohort with so many samples each."""
    count_C = count_C.sort(descending=True).values
    steps_C, size = local.full_steps(count_C, drop_single), local.batch_size
    steps_C, first, blocks, sorting = steps_C.sort(descending=True).values, 0, [0], 0
    while first < len(steps_C):
        steps = max(1, int(steps_C[first]))
        clients = min(block_size(steps, size), len(steps_C) - first)
        blocks.append(8 * clients * steps * (size + 1))
        busy = count_C[first : first + min(threads, clients)]  # in batches.c: hashes, sorted hashes, buckets
        sorting = max(sorting, 40 * int(busy.sum()))
        first += clients
    together = max(a + b for a, b in pairwise([*blocks, 0]))  # one is laid out while the last is worked on
    return together + sorting + 8 * int(count_C.sum())


def _blank(job: Job, flat_CP: Tensor, parameters: Sequence[Slot]) -> Trained:
    """The result before training: the tensors that training will write to."""
    clients, device = len(job.client_C), job.start_P.device
    slots = {n: job.slots[n] if n in job.slots else torch.zeros_like(flat_CP) for n in job.optimizer.slots}
    mine = {term: {n: v.clone() for n, v in rows.items()} for term, rows in job.term_states.items()}
    states = {
        name: (value.clone() if name in job.own_states else value.expand(clients, *value.shape).clone())
        for name, value in job.states.items()
    }
    count_C = torch.zeros(clients, dtype=torch.int64) if job.count_C is None else job.count_C.clone()
    loss_C = torch.zeros(clients, dtype=job.start_P.dtype, device=device)
    finite_C = torch.ones(clients, dtype=torch.bool, device=device)
    magnitude = {slot.name: torch.zeros_like(loss_C) for slot in parameters} if job.magnitudes else {}
    squared_C = torch.zeros(clients if job.lengths else 0, dtype=torch.float64, device=device)
    count_C, steps_C = to_device(count_C, device), job.steps_C.clone()
    return Trained(flat_CP, states, slots, count_C, loss_C, finite_C, {}, mine, magnitude, steps_C, squared_C)
