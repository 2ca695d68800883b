"""Triton if it is installed, and helpers for its kernels.

Without Triton the kernel modules can still be imported; `gpu.layers.supports` is False, so no kernel is run.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

FAST = "tf32"  # if torch's own matrix products may round to TF32
EXACT = "ieee"  # if they may not ("tf32x3" would be close to float32, on the tensor cores)

try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
    jit: Any = triton.jit
except ImportError:
    triton = tl = None

    def jit(kernel: Any) -> Any:
        """Stands in for triton.jit; the kernel is never run."""
        return kernel


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
    """The tensor itself where its last dimension is contiguous, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def takes(*rows: Tensor) -> bool:
    """Whether kernels work for such rows: float32 on this thread's GPU, neighbouring columns side by side."""
    here = installed() and rows[0].is_cuda and rows[0].device.index == torch.cuda.current_device()
    return here and all(value.dtype == torch.float32 and value.stride(1) == 1 for value in rows)
