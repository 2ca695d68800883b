"""Threads of this process: how many cores there are, and an ordered, bounded thread-pool map."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_pool(threads: int) -> ThreadPoolExecutor:
    """A pool in whose threads torch uses one core each: how torch splits a sum decides how the sum is rounded."""
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


def ordered_map(work: Callable[[Item], Result], items: Sequence[Item], threads: int | None = None) -> Iterator[Result]:
    """Ordered, bounded thread-pool map: results in the order of the items, at most one more than `threads` pending.

    The threads (by default one a core) live as long as the iterator; a single item is worked on in the calling thread.

    >>> list(ordered_map(lambda n: n * n, [3, 1, 2], threads=2))
    [9, 1, 4]
    """
    threads = min(threads or cores(), len(items))
    if threads < 2:
        yield from map(work, items)
        return
    with thread_pool(threads) as pool:
        yield from map_in(pool, work, items, pending=threads + 1)


def map_in(
    pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], pending: int | None = None
) -> Iterator[Result]:
    """The same in a pool that is there already; with no bound on what is pending, everything is submitted at once."""
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if pending is not None and len(waiting) >= pending:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
