"""Triton where it is installed, and what its kernels share; without it the kernels' modules import but are never run.

`kernels.for_gpu` asks `installed()` before it hands out a layer that would launch a kernel.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

FAST = "tf32"  # products where torch's own may round to TF32
EXACT = "ieee"  # and where they may not; "tf32x3" is as good as float32 to a few bits, on the tensor cores

try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
    jit: Any = triton.jit
except ImportError:
    triton = tl = None

    def jit(kernel: Any) -> Any:
        """A kernel that will not be run."""
        return kernel


def installed() -> bool:
    return triton is not None


def precision() -> str:
    """How float32 products are rounded, by the switch torch's own products follow."""
    return FAST if torch.backends.cuda.matmul.allow_tf32 else EXACT


def pieces(count: int, size: int) -> int:
    """How many pieces of a size cover a count.

    >>> pieces(9, 4)
    3
    """
    return -(-count // size)


def power_of_two(count: int, least: int, most: int) -> int:
    """The block that covers a count, between two powers of two (a product's sides are at least 16).

    >>> power_of_two(10, 16, 64), power_of_two(33, 16, 64), power_of_two(500, 16, 64)
    (16, 64, 64)
    """
    return min(max(1 << (count - 1).bit_length(), least), most)


def splits(programs: int, length: int, least: int, wanted: int = 528) -> int:
    """Into how many stretches of at least `least` a sum is split so that a GPU has enough programs to run.

    >>> splits(250, 7840, 512), splits(50, 9000, 512), splits(50, 300, 512)
    (3, 11, 1)
    """
    return max(1, min(pieces(wanted, programs), length // least))


def rows_contiguous(x: Tensor) -> Tensor:
    """The tensor itself where its last dimension is contiguous, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()
