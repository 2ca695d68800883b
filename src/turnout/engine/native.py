"""Local training in C, for small models on a CPU: a client goes through all of its steps while its weights are in the
cache, and no interpreter is asked in between.

The source, `local_steps.c`, is compiled once for the machine and kept in the user's cache folder; without a compiler
(cc, gcc or clang, or what $CC says) the same steps are done by engine/backprop.py. It has plain SGD over stacks of
dense layers, convolutions, rectifiers and max-pools under a cross-entropy. What becomes of a client does not depend on
its company, and the calls leave the interpreter's lock to other threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.cache import cache_dir
from turnout.engine.backprop import Convolution, Dense, Flat, Pool, Rectify, Stack
from turnout.engine.batches import Batches
from turnout.engine.layout import Layout
from turnout.engine.losses import cross_entropy
from turnout.types import Samples

SOURCE = Path(__file__).with_name("local_steps.c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
NUMBERS = {torch.float32: ("float", "expf", "logf"), torch.float64: ("double", "exp", "log")}
LARGEST = 256 << 10  # bytes of weights: more than this would not stay in a core's own cache


@dataclass(frozen=True)
class Step:
    """One layer as the C side knows it: the struct `Layer`, field by field."""

    kind: int
    numbers_in: int
    numbers_out: int
    weight: int = 0
    bias: int = -1
    i: int = 0
    o: int = 0
    h: int = 0
    w: int = 0
    kh: int = 0
    kw: int = 0
    ph: int = 0
    pw: int = 0

    def whole(self) -> list[int]:
        return [getattr(self, field.name) for field in fields(self)]


DENSE, CONVOLUTION, RECTIFY, POOL = range(4)


def program(stack: Stack, layout: Layout, shape: Sequence[int]) -> list[Step] | None:
    """The layers for samples of a shape, or None where one of them is not written in C."""
    places = {slot.name: slot.start for slot in layout.slots}
    steps, shape = [], tuple(shape)
    for layer in stack.layers:
        size = prod(shape)
        if isinstance(layer, Flat):
            shape = (size,)
        elif isinstance(layer, Rectify):
            steps.append(Step(RECTIFY, size, size))
        elif isinstance(layer, Dense) and len(shape) == 1:
            outputs = next(slot.shape[0] for slot in layout.slots if slot.name == layer.weight)
            bias = -1 if layer.bias is None else places[layer.bias]
            steps.append(Step(DENSE, size, outputs, places[layer.weight], bias))
            shape = (outputs,)
        elif isinstance(layer, Pool) and len(shape) == 3 and layer.kernel == layer.stride:
            (i, h, w), (kh, kw) = shape, layer.kernel
            shape = (i, h // kh, w // kw)
            steps.append(Step(POOL, size, prod(shape), i=i, o=i, h=h, w=w, kh=kh, kw=kw))
        elif isinstance(layer, Convolution) and len(shape) == 3:
            (i, h, w), (kh, kw), (ph, pw) = shape, layer.kernel, layer.padding
            o = next(slot.shape[0] for slot in layout.slots if slot.name == layer.weight)
            bias = -1 if layer.bias is None else places[layer.bias]
            shape = (o, h + 2 * ph - kh + 1, w + 2 * pw - kw + 1)
            steps.append(Step(CONVOLUTION, size, prod(shape), places[layer.weight], bias, i, o, h, w, kh, kw, ph, pw))
        else:
            return None
    return steps


@dataclass(frozen=True)
class Native:
    """A model's local steps in C."""

    layout: Layout
    shape: tuple[int, ...]
    steps: Tensor  # [layers, fields of a step]

    @classmethod
    def of(cls, stack: Stack, layout: Layout, x: Tensor) -> Native | None:
        """For samples like `x` [B, ...]; None where the model, the machine or the size is not for it."""
        small = layout.width * x.element_size() <= LARGEST
        if x.is_cuda or x.dtype not in NUMBERS or not small or stack.loss is not cross_entropy:
            return None
        steps = program(stack, layout, x.shape[1:])
        if steps is None or function(x.dtype) is None:
            return None
        return cls(layout, tuple(x.shape[1:]), torch.tensor([step.whole() for step in steps]))

    def takes(self, samples: Samples, start: Tensor) -> bool:
        """Whether samples and first weights lie in memory as the C side expects them."""
        x, y = samples.x, samples.y
        plain = x.dtype == start.dtype and tuple(x.shape[1:]) == self.shape and start.stride(-1) == 1
        return plain and y.dtype == torch.int64 and y.dim() == 1 and x.is_contiguous() and y.is_contiguous()

    def train(
        self,
        samples: Samples,
        batches: Batches,
        steps_c: Tensor,
        start_cP: Tensor,
        lr: float,
        keep: float,
        out_cP: Tensor,
    ) -> Tensor:
        """Some clients' steps; `out_cP` gets what has changed (the weights themselves, in personal columns). The sum of
        the losses of each client's steps comes back."""
        run = function(start_cP.dtype)
        assert run is not None
        rows_cJB, steps_c, loss_c = batches.row_cJB.contiguous(), steps_c.contiguous(), start_cP.new_zeros(len(steps_c))
        common = len(start_cP) == 1
        wrong = run(
            *(_at(self.steps), len(self.steps)),
            *(_at(samples.x), prod(self.shape), _at(samples.y)),
            *(_at(rows_cJB), rows_cJB.shape[1], rows_cJB.shape[2], _at(steps_c), len(steps_c)),
            *(_at(start_cP), 0 if common else start_cP.stride(0), lr, keep),
            *(_at(out_cP), out_cP.stride(0), self.layout.width, self.layout.shared, _at(loss_c)),
        )
        if wrong == 1:
            raise MemoryError
        if wrong:
            raise IndexError("a label is outside the model's scores")
        return loss_c


def _at(value: Tensor) -> int:
    return value.data_ptr()


@lru_cache
def function(dtype: torch.dtype) -> Any:
    """The compiled function for a type of number; None where it cannot be had."""
    name = f"train_{NUMBERS[dtype][0]}"
    path = compiled(dtype)
    if path is None:
        return None
    try:
        found = ctypes.CDLL(str(path))[name]
    except (OSError, AttributeError):
        return None
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    samples, batches = (pointer, whole, pointer), (pointer, whole, whole, pointer, whole)
    start, out = (pointer, whole, real, real), (pointer, whole, whole, whole, pointer)
    found.argtypes = [pointer, whole, *samples, *batches, *start, *out]
    found.restype = whole
    return found


def compiled(dtype: torch.dtype) -> Path | None:
    """The library for this machine, from the cache folder or made now; it takes its place in one step."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.name != "posix":
        return None
    number, exp, log = NUMBERS[dtype]
    flags = [*FLAGS, f"-DREAL={number}", f"-DEXP={exp}", f"-DLOG={log}", f"-DNAME=train_{number}"]
    about = repr((SOURCE.read_bytes(), compiler, flags, _processor())).encode()
    path = cache_dir() / "kernels" / f"{number}-{hashlib.blake2b(about, digest_size=12).hexdigest()}.so"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *flags, str(SOURCE), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(made, path)
    except (OSError, subprocess.SubprocessError):
        return None
    return path


def _processor() -> str:
    """What instructions there are: a cache folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
