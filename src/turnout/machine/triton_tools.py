"""Triton if it is installed, and helpers for its kernels."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
from torch import Tensor

FAST = "tf32"  # if torch's own matrix products may round to TF32
EXACT = "ieee"  # if they may not ("tf32x3" would be close to float32, on the tensor cores)

COLUMNS_TO = (1 << 31) - (1 << 20)  # leaves room for the columns that a program counts beyond the last one

try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
except ImportError:
    triton = tl = None


def jit(function: Any = None, **options: Any) -> Any:
    """Replaces `triton.jit`, with the same options. Without Triton the kernel is never run."""
    if function is None:
        return partial(jit, **options)
    return function if triton is None else triton.jit(function, **options)


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


def rows_contiguous(x: Tensor) -> Tensor:
    """The tensor itself if its last dimension is contiguous, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def takes(*rows: Tensor) -> bool:
    """Whether kernels work for these rows: float32 on this thread's GPU, contiguous, columns counted by 32 bits."""
    here = installed() and rows[0].is_cuda and rows[0].device.index == torch.cuda.current_device()
    return here and all(v.dtype == torch.float32 and v.stride(1) == 1 and v.shape[1] < COLUMNS_TO for v in rows)
