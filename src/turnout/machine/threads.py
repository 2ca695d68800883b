"""Threads and child processes: the number of cores, an ordered, bounded thread-pool map, and processes that end with
their parent and do not run the user's script again."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import ModuleType
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

KILLED_BY_PARENT = 1  # exit code


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_pool(threads: int) -> ThreadPoolExecutor:
    """A pool in whose threads torch uses one core each: the number of cores decides how torch rounds a sum."""
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


def ordered_map(work: Callable[[Item], Result], items: Sequence[Item], threads: int | None = None) -> Iterator[Result]:
    """Thread-pool map: results in the order of the items, at most one more than `threads` pending.

    >>> list(ordered_map(lambda n: n * n, [3, 1, 2], threads=2))
    [9, 1, 4]
    """
    threads = min(threads or cores(), len(items))
    if threads < 2:
        yield from map(work, items)
        return
    with thread_pool(threads) as pool:
        yield from map_in(pool, work, items, pending=threads + 1)


def map_in(pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], pending: int) -> Iterator[Result]:
    """The same in an existing pool, at most `pending` at a time."""
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= pending:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def end_with_parent() -> None:
    """From now on this process ends at once when its parent does, also if the parent is killed.

    On Linux the kernel kills this process when the parent's end of a pipe closes; elsewhere a thread waits for that.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    pipe = parent.sentinel
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):

        def watch() -> None:
            wait([pipe])
            os._exit(KILLED_BY_PARENT)

        threading.Thread(target=watch, daemon=True).start()
    else:
        if select.select([pipe], [], [], 0)[0]:  # the parent ended before
            os._exit(KILLED_BY_PARENT)


@contextmanager
def script_left_alone() -> Iterator[None]:
    """Start processes inside this block so that they do not execute the user's script again.

    multiprocessing does not find the script, so a script needs no `if __name__ == "__main__"` around it. Objects that
    the script defines cannot be pickled meanwhile, because the new process would not have them.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
