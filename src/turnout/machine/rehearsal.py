"""Triton kernels compiled side by side: work is rehearsed before it is done.

Triton compiles a kernel when it is first launched, and whoever launched it waits: dozens of kernels come one after
another on a single core. In a rehearsal launches only hand kernels to be compiled to a few threads (compiling needs
Python's lock for about a tenth of its time), and what they would have written is zeros. What is on disk already is
loaded in the same way. Nothing depends on a rehearsal: what it missed is compiled when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

import torch

from turnout.machine.threads import cores
from turnout.machine.triton_tools import COMPILE, SKIP, launches, triton

SIDE_BY_SIDE = True  # benchmarks switch it off to compare


def rehearse(work: Callable[[], Any]) -> None:
    """Call a function whose results nobody wants, and wait until all kernels that it launches are compiled.

    What fails here will fail again when it counts.
    """
    if SIDE_BY_SIDE and hasattr(triton, "AsyncCompileMode"):
        copy_context().run(_rehearse, work)  # Triton's mode ends with it, also if somebody interrupts the waiting


def _rehearse(work: Callable[[], Any]) -> None:
    with suppress(Exception), ThreadPoolExecutor(cores(), initializer=_same_gpu()) as pool:
        compiled = triton.AsyncCompileMode(_Ready(pool), ignore_errors=True)
        with _launches(COMPILE), compiled:
            work()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Inside, kernels are passed over: to see whether work is possible at all, and nothing is compiled for it."""
    with _launches(SKIP):
        yield


@contextmanager
def _launches(become: str) -> Iterator[None]:
    """In this thread alone; so torch may not hand the backward pass to another."""
    token = launches.set(become)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        launches.reset(token)


class _Ready:
    """Compiles in a pool of threads, and makes what was compiled ready to be launched: for that Triton compiles a few
    lines of C, and loads the kernel."""

    def __init__(self, pool: ThreadPoolExecutor):
        self.pool = pool

    def submit(self, compiled: Callable[[], Any]) -> Future[Any]:
        return self.pool.submit(self._one, compiled)

    @staticmethod
    def _one(compiled: Callable[[], Any]) -> Any:
        kernel = compiled()
        with suppress(Exception):
            _ = kernel.run
        return kernel


def _same_gpu() -> Callable[[], None] | None:
    """Makes this thread's GPU that of another thread."""
    if not torch.cuda.is_available():
        return None
    here = torch.cuda.current_device()
    return lambda: torch.cuda.set_device(here)
