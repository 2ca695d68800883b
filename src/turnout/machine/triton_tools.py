"""Triton if it is installed, helpers for its kernels, and rehearsals that compile kernels side by side.

Triton compiles a kernel when it is first launched, and the launch waits. In a rehearsal launches only hand kernels to a
few threads that compile them, and their results are zeros; a kernel that it missed is compiled when it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import torch
from torch import Tensor

from turnout.machine.threads import cores

FAST = "tf32"  # if torch's own matrix products may round to TF32
EXACT = "ieee"  # if they may not ("tf32x3" would be close to float32, on the tensor cores)

COLUMNS_TO = (1 << 31) - (1 << 20)  # leaves room for the columns that a program counts beyond the last one

SIDE_BY_SIDE = True  # benchmarks switch it off to compare
RUN, COMPILE, SKIP = "run", "compile", "skip"
launches: ContextVar[str] = ContextVar("launches", default=RUN)  # what a launch of a kernel does

try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")

    class Kernel(triton.JITFunction):
        """A kernel that is run, only compiled, or skipped, by the value of `launches`."""

        def run(self, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            wanted = launches.get()
            if wanted == SKIP:
                return None
            return super().run(*args, grid=grid, warmup=warmup or wanted == COMPILE, **options)

except ImportError:
    triton = tl = None


def jit(function: Any = None, **options: Any) -> Any:
    """Replaces `triton.jit`, with the same options. Without Triton the kernel is never run."""
    if function is None:
        return partial(jit, **options)
    if triton is None:
        return function
    made = triton.jit(function, **options)
    return Kernel(function, **options) if isinstance(made, triton.JITFunction) else made  # else it is interpreted


@jit
def mixed(z, MIX_1: tl.constexpr, MIX_2: tl.constexpr):  # type: ignore[no-untyped-def]
    """`rng.mix` inside a kernel, which is given its constants."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MIX_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def installed() -> bool:
    return triton is not None


def precision() -> str:
    """How kernels round float32 products: follows torch's switch for its own."""
    return FAST if torch.backends.cuda.matmul.allow_tf32 else EXACT


def pieces(count: int, size: int) -> int:
    """How many pieces of this size cover `count`.

    >>> pieces(9, 4)
    3
    """
    return -(-count // size)


def power_of_two(count: int, least: int, most: int) -> int:
    """The smallest power of two that covers `count`, kept within [least, most] (a product's sides are at least 16).

    >>> power_of_two(10, 16, 64), power_of_two(33, 16, 64), power_of_two(500, 16, 64)
    (16, 64, 64)
    """
    return min(max(1 << (count - 1).bit_length(), least), most)


def splits(programs: int, length: int, least: int, wanted: int = 528) -> int:
    """Into how many parts of at least `least` terms to split a sum, so that the GPU has enough programs to run.

    >>> splits(250, 7840, 512), splits(50, 9000, 512), splits(50, 300, 512)
    (3, 11, 1)
    """
    return max(1, min(pieces(wanted, programs), length // least))


def blank(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a kernel's result, on the device of `like` (without a shape: in its order); zeros if none is run."""
    runs = launches.get() == RUN
    if not shape:
        return torch.empty_like(like) if runs else torch.zeros_like(like)
    return (torch.empty if runs else torch.zeros)(shape, dtype=dtype or like.dtype, device=like.device)


def rows_contiguous(x: Tensor) -> Tensor:
    """The tensor itself if its last dimension is contiguous, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def takes(*rows: Tensor) -> bool:
    """Whether kernels work for these rows: float32 on this thread's GPU, contiguous, columns counted by 32 bits."""
    here = installed() and rows[0].is_cuda and rows[0].device.index == torch.cuda.current_device()
    return here and all(v.dtype == torch.float32 and v.stride(1) == 1 and v.shape[1] < COLUMNS_TO for v in rows)


def rehearse(work: Callable[[], Any]) -> None:
    """Call a function without running its kernels, and wait until all of them are compiled."""
    if SIDE_BY_SIDE and hasattr(triton, "AsyncCompileMode"):
        copy_context().run(_rehearse, work)  # Triton's mode ends with the context, also after an interrupt


def _rehearse(work: Callable[[], Any]) -> None:
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
    initializer = None if gpu is None else partial(torch.cuda.set_device, gpu)
    with suppress(Exception), ThreadPoolExecutor(cores(), initializer=initializer) as pool:
        compiled = triton.AsyncCompileMode(_Ready(pool), ignore_errors=True)
        with _launching(COMPILE), compiled:
            work()


def without_kernels() -> Any:
    """Inside `with without_kernels():` kernels are skipped and not compiled, to see whether work is possible at all."""
    return _launching(SKIP)


@contextmanager
def _launching(become: str) -> Iterator[None]:
    """Sets `launches` in this thread alone, so torch may not hand the backward pass to another thread."""
    token = launches.set(become)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        launches.reset(token)


class _Ready:
    """Compiles kernels in a pool of threads and prepares their launch, for which Triton compiles a few lines of C."""

    def __init__(self, pool: ThreadPoolExecutor):
        self.pool = pool

    def submit(self, compiled: Callable[[], Any]) -> Future[Any]:
        def prepare() -> Any:
            kernel = compiled()
            with suppress(Exception):
                _ = kernel.run
            return kernel

        return self.pool.submit(prepare)
