"""Local training in C, for small models on a CPU: a client goes through all of its steps while its weights are in the
cache, and no interpreter is asked in between.

`local_steps.c` has plain SGD over stacks of dense layers, convolutions, rectifiers and max-pools under a cross-entropy;
everything else, and everything on a machine without a compiler, is engine/backprop.py's. What becomes of a client does
not depend on its company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.engine.backprop import Convolution, Dense, Flat, Pool, Rectify, Stack
from turnout.engine.batches import Batches
from turnout.engine.losses import cross_entropy
from turnout.layout import Layout
from turnout.machine.compiler import at, function, pointer, real, whole
from turnout.types import Samples

SOURCE = Path(__file__).with_name("local_steps.c")
NUMBERS = {
    torch.float32: ("REAL=float", "EXP=expf", "LOG=logf", "SINGLE"),
    torch.float64: ("REAL=double", "EXP=exp", "LOG=log"),
}
ARGUMENTS = (
    *(pointer, whole),  # layers
    *(pointer, whole, pointer),  # samples
    *(pointer, whole, whole, pointer, whole),  # batches
    *(pointer, whole, real, real, pointer, pointer),  # first weights and `Rate`
    *(pointer, whole, whole, pointer),  # weights and losses
)
LARGEST = 1 << 20  # bytes of weights: more than this would not stay in the cache of a core


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
    slots = {slot.name: slot for slot in layout.slots}
    steps, shape, written = [], tuple(shape), set()

    def weights(layer: Dense | Convolution) -> tuple[int, int, int]:
        """How many outputs, and where weight and bias are."""
        weight = slots[layer.weight]
        written.update({layer.weight, layer.bias} - {None})
        return weight.shape[0], weight.start, -1 if layer.bias is None else slots[layer.bias].start

    for layer in stack.layers:
        size = prod(shape)
        if isinstance(layer, Flat):
            shape = (size,)
        elif isinstance(layer, Rectify):
            steps.append(Step(RECTIFY, size, size))
        elif isinstance(layer, Dense) and len(shape) == 1:
            o, weight, bias = weights(layer)
            steps.append(Step(DENSE, size, o, weight, bias))
            shape = (o,)
        elif isinstance(layer, Pool) and len(shape) == 3 and layer.kernel == layer.stride:
            (i, h, w), (kh, kw) = shape, layer.kernel
            shape = (i, h // kh, w // kw)
            steps.append(Step(POOL, size, prod(shape), i=i, o=i, h=h, w=w, kh=kh, kw=kw))
        elif isinstance(layer, Convolution) and len(shape) == 3:
            (i, h, w), (kh, kw), (ph, pw) = shape, layer.kernel, layer.padding
            o, weight, bias = weights(layer)
            shape = (o, h + 2 * ph - kh + 1, w + 2 * pw - kw + 1)
            steps.append(Step(CONVOLUTION, size, prod(shape), weight, bias, i, o, h, w, kh, kw, ph, pw))
        else:
            return None
    return steps if written == slots.keys() else None  # every column of a row is some layer's


@dataclass(frozen=True)
class Rate:
    """A step: keep W - lr g of a weight W with the gradient g, or with springs (K, F) K W + F - lr g."""

    lr: float
    keep: float
    springs: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, lr: float, keep: float, springs: Sequence[tuple[Tensor, Tensor]], start: Tensor) -> Rate:
        """Springs (k, f) of the shared columns, of which the gradient gains k w - f; numbers of the type of `start`."""
        if not springs:
            return cls(lr, keep)
        K, F = start.new_full(start.shape[-1:], keep), start.new_zeros(start.shape[-1:])
        for k_P, f_P in springs:
            K[: len(k_P)] -= lr * k_P
            F[: len(f_P)] += lr * f_P
        return cls(lr, keep, (K, F))


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
        if steps is None or train_function(x.dtype) is None:
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
        rate: Rate,
        out_cP: Tensor,
        shared: int = 0,
    ) -> Tensor:
        """Some clients' steps; `out_cP` gets their weights, or how the first `shared` of them have changed.

        The sum of the losses of each one's steps comes back.
        """
        run = train_function(start_cP.dtype)
        assert run is not None
        rows_cJB, steps_c, loss_c = batches.row_cJB.contiguous(), steps_c.contiguous(), start_cP.new_zeros(len(steps_c))
        springs = (None, None) if rate.springs is None else tuple(at(value) for value in rate.springs)
        wrong = run(
            *(at(self.steps), len(self.steps)),
            *(at(samples.x), prod(self.shape), at(samples.y)),
            *(at(rows_cJB), rows_cJB.shape[1], rows_cJB.shape[2], at(steps_c), len(steps_c)),
            *(at(start_cP), 0 if len(start_cP) == 1 else start_cP.stride(0), rate.lr, rate.keep, *springs),
            *(at(out_cP), out_cP.stride(0), shared, at(loss_c)),
        )
        if wrong == 1:
            raise MemoryError
        if wrong:
            raise IndexError("a label is outside the model's scores")
        return loss_c


def train_function(dtype: torch.dtype) -> Any:
    """The compiled steps for a type of number; None where they cannot be had."""
    return function(SOURCE, "train", ARGUMENTS, NUMBERS[dtype])
