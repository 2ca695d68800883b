"""A pool of worker threads, each with its own copy of the model and one core.

Threads, not processes: torch's kernels release the interpreter lock, and the matrices stay in one address space. One
core each, because kernels that share cores wait for one another at every small operation (case a of the benchmarks on
a busy machine: 127 ms a round with shared cores, 10 ms without).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from turnout.engine.gradients import Gradients
from turnout.machine.threads import map_in, thread_pool

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool:
    """Ordered thread-pool map; each call gets a `Gradients` object that no other thread is using.

    Each worker sets torch to one thread, because the number of threads decides how torch rounds a sum.
    """

    def __init__(self, gradients: Gradients, threads: int):
        self.first, self.threads = gradients, threads
        self._idle: SimpleQueue[Gradients] = SimpleQueue()
        for i in range(threads):
            self._idle.put(gradients if i == 0 else gradients.twin())
        self._pool = thread_pool(threads) if threads > 1 else None

    def map(self, function: Callable[[Gradients, Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items; an error in one of them is raised here.

        A single item is done in the calling thread: for small items, handing over takes longer than the work.
        """
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
