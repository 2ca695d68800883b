"""The interface of every engine: the gradient of a chunk of clients, or a plain SGD step on it; and a pool of threads.

`ByHand` (by_hand.py) takes plain stacks of layers, `Vmapped` (autograd.py) any module that vectorises, `Looped`
(autograd.py) any module, one client at a time; it is the reference that tests compare the other two with.

Shape letters: c clients of a chunk, B batch, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

from torch import Tensor

from turnout.engine.batches import Batch
from turnout.engine.kernels.graphs import GraphCache
from turnout.engine.network import Network
from turnout.machine.threads import map_in, thread_pool
from turnout.types import Tensors

Item = TypeVar("Item")
Result = TypeVar("Result")


class Gradients(Protocol):
    """Gradients and plain SGD steps of a chunk. States (BatchNorm statistics) are updated in place, as by a module.

    network        the model
    title          the engine's name in records
    sees_padding   whether the samples that pad a short batch would enter BatchNorm's statistics
    graphs         the captured steps; None if steps cannot be captured
    """

    network: Network
    title: str
    sees_padding: bool
    graphs: GraphCache | None

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        """Write the gradients into `out_cP`; returns the mean loss of each client."""
        ...

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        """One plain SGD step in place: x <- x - lr (g + decay x); returns the mean loss of each client."""
        ...

    def add_squares(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, fresh: bool, scale: float
    ) -> None:
        """Add the square of each sample's own gradient times `scale`, in evaluation mode; samples with mask 0 do not
        count. `fresh`: `into_cP` holds no values yet.
        """
        ...

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        """Outputs of each client's own model on its own samples [c, B, ...], in evaluation mode."""
        ...

    def twin(self) -> Gradients:
        """A copy for another thread (modules are not thread-safe)."""
        ...


class WorkerPool:
    """Ordered thread-pool map; each call gets a `Gradients` object that no other thread is using.

    Torch uses one core in each: the number of cores decides how it rounds a sum, and kernels that share cores wait for
    one another (127 ms a round on a busy machine, 10 ms without sharing).
    """

    def __init__(self, gradients: Gradients, threads: int):
        self.first, self.threads = gradients, threads
        self._idle: SimpleQueue[Gradients] = SimpleQueue()
        for i in range(threads):
            self._idle.put(gradients if i == 0 else gradients.twin())
        self._pool = thread_pool(threads) if threads > 1 else None

    def map(self, function: Callable[[Gradients, Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items; an error in one of them is raised here."""
        if self._pool is None:
            return [function(self.first, item) for item in items]
        rest = iter(items)
        first = list(itertools.islice(rest, 2))
        if len(first) < 2:
            return [function(self.first, item) for item in first]
        return list(map_in(self._pool, partial(self._one, function), itertools.chain(first, rest), self.threads + 1))

    def _one(self, function: Callable[[Gradients, Item], Result], item: Item) -> Result:
        gradients = self._idle.get()
        try:
            return function(gradients, item)
        finally:
            self._idle.put(gradients)
