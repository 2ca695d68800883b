"""Local steps in C, for small models on a CPU: each client does all of its steps while its weights are in the cache.

A client's result does not depend on which other clients are trained, to the bit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnout.engine.backprop import Stack, cross_entropy
from turnout.engine.batches import Batches
from turnout.engine.dropout import hashed
from turnout.engine.job import plain_sgd
from turnout.engine.layers import BatchNorm, Convolution, DenseLayer, Drop, Flatten, MaxPool, ReLU
from turnout.layout import Layout
from turnout.machine.compiler import NUMBERS, at, function, pointer, real, whole
from turnout.parts.optimizers import SGD, Adam, Optimizer
from turnout.types import Samples, Tensors

SOURCE = Path(__file__).parent / "c" / "local_steps.c"
ARGUMENTS = (
    *(pointer, whole),  # layers
    *(pointer, whole, pointer),  # samples
    *(pointer, whole, whole, pointer, whole),  # batches
    *(pointer, whole),  # first weights
    *(whole, real, real, real, real, real, pointer, pointer),  # the rule of a step
    *(pointer, pointer, pointer, whole, pointer, whole, pointer, whole),  # optimizer state, dropout keys, statistics
    *(pointer, whole, whole, pointer, pointer, pointer, whole),  # weights, losses, what is known of updates; threads
)
LARGEST = 1 << 20  # bytes of weights: more would not stay in a core's cache


class NativeLayer(NamedTuple):
    """One layer as C sees it: the fields of the struct `Layer`, in order."""

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


DENSE, CONVOLUTION, NORM, RELU, POOL, DROP = range(6)
PLAIN, MOMENTUM, ADAM = range(3)


def native_layers(
    stack: Stack, layout: Layout, shape: Sequence[int], keys: Sequence[str] = ()
) -> list[NativeLayer] | None:
    """A model's layers for samples of a shape; None if C does not support one of them. `keys`: those of dropout."""
    slots = {slot.name: slot for slot in layout.slots}
    layers, shape, fitting, statistics = [], tuple(shape), set(), 0

    def weights(layer: DenseLayer | Convolution, *inputs: int) -> tuple[int, int, int]:
        """The number of outputs, and the columns where weight and bias begin (-1: no bias)."""
        weight = slots[layer.weight]
        if weight.shape[1:] == inputs:  # else C would read and write outside of them
            fitting.update({layer.weight, layer.bias} - {None})
        return weight.shape[0], weight.start, -1 if layer.bias is None else slots[layer.bias].start

    for layer in stack.layers:
        size = prod(shape)
        if isinstance(layer, Flatten):
            shape = (size,)
        elif isinstance(layer, ReLU):
            layers.append(NativeLayer(RELU, size, size))
        elif isinstance(layer, Drop) and layer.key in keys:
            least, gain = hashed(layer.p)
            each = prod(shape[1:]) if layer.whole_channels else 1
            place = list(keys).index(layer.key)
            layers.append(NativeLayer(DROP, size, size, i=place, o=least, h=_bits(gain), w=each))
        elif isinstance(layer, BatchNorm):
            names, each = (f"{layer.name}.weight", f"{layer.name}.bias"), prod(shape[1:])
            fitting.update(name for name in names if slots[name].shape == shape[:1])
            weight, bias = (slots[name].start for name in names)
            numbers = {"o": _bits(layer.momentum), "h": _bits(layer.eps), "kh": statistics, "kw": statistics + shape[0]}
            layers.append(NativeLayer(NORM, size, size, weight, bias, i=shape[0], w=each, **numbers))
            statistics += 2 * shape[0]
        elif isinstance(layer, DenseLayer) and len(shape) == 1:
            o, weight, bias = weights(layer, size)
            layers.append(NativeLayer(DENSE, size, o, weight, bias))
            shape = (o,)
        elif isinstance(layer, MaxPool) and len(shape) == 3 and layer.kernel == layer.stride:
            (i, h, w), (kh, kw) = shape, layer.kernel
            shape = (i, h // kh, w // kw)
            layers.append(NativeLayer(POOL, size, prod(shape), i=i, o=i, h=h, w=w, kh=kh, kw=kw))
        elif isinstance(layer, Convolution) and len(shape) == 3:
            (i, h, w), (kh, kw), (ph, pw) = shape, layer.kernel, layer.padding
            o, weight, bias = weights(layer, i, kh, kw)
            shape = (o, h + 2 * ph - kh + 1, w + 2 * pw - kw + 1)
            layers.append(NativeLayer(CONVOLUTION, size, prod(shape), weight, bias, i, o, h, w, kh, kw, ph, pw))
        else:
            return None
        if min(shape) < 1:  # a kernel larger than its image
            return None
    return layers if fitting == slots.keys() else None  # every parameter must belong to a layer, and fit it


def _bits(number: float) -> int:
    """The integer that has the same bits as a float64."""
    return int.from_bytes(struct.pack("<d", number), "little", signed=True)


def in_c(optimizer: Optimizer) -> bool:
    return type(optimizer) in (SGD, Adam)


@dataclass(frozen=True)
class NativeSteps:
    """A model's local steps in C.

    shape    of a sample
    layers   [layers, fields of a NativeLayer]
    norms    names of its BatchNorm layers
    """

    shape: tuple[int, ...]
    layers: Tensor
    norms: tuple[str, ...] = ()

    @classmethod
    def of(cls, stack: Stack, layout: Layout, x: Tensor, keys: Sequence[str] = ()) -> NativeSteps | None:
        """For samples like `x` [B, ...]; None if the model is too large, not written in C, or cannot be compiled."""
        small = layout.width * x.element_size() <= LARGEST
        if x.is_cuda or x.dtype not in NUMBERS or not small or stack.loss is not cross_entropy:
            return None
        layers = native_layers(stack, layout, x.shape[1:], keys)
        if layers is None or train_function(x.dtype) is None:
            return None
        norms = tuple(layer.name for layer in stack.layers if isinstance(layer, BatchNorm))
        return cls(tuple(x.shape[1:]), torch.tensor(layers), norms)

    def takes(self, samples: Samples, start: Tensor) -> bool:
        """Whether samples and first weights have the types and memory layout that C expects."""
        x, y = samples.x, samples.y
        plain = x.dtype == start.dtype and tuple(x.shape[1:]) == self.shape and start.stride(-1) == 1
        return plain and y.dtype == torch.int64 and y.dim() == 1 and x.is_contiguous() and y.is_contiguous()


@dataclass(frozen=True)
class NativeJob:
    """A model's local steps in C by one rule; each client is trained by the next free one of `threads`.

    A step changes a weight W with gradient g: W <- keep W - lr g, with keep = 1 - lr * weight decay, or with springs
    W <- K W + F - lr g; or SGD with momentum, or Adam.

    steps       the model
    optimizer   SGD or Adam
    lr          learning rate
    springs     K and F, a number for each parameter
    threads     how many
    """

    steps: NativeSteps
    optimizer: SGD | Adam
    lr: float
    springs: tuple[Tensor | None, Tensor | None] = (None, None)
    threads: int = 1

    @classmethod
    def of(
        cls, steps: NativeSteps, optimizer: Optimizer, lr: float, springs: Sequence[tuple[Tensor, Tensor] | None],
        start: Tensor, threads: int,
    ) -> NativeJob | None:  # fmt: skip
        """From the terms' springs (k, f) on the shared columns: each adds k w - f to the gradient.

        None for steps that C does not support: other optimizers, other terms, and springs with anything but plain SGD.
        """
        known = [spring for spring in springs if spring is not None]
        if not in_c(optimizer) or len(known) < len(springs) or (springs and not plain_sgd(optimizer)):
            return None
        assert isinstance(optimizer, SGD | Adam)
        if not springs or isinstance(optimizer, Adam):
            return cls(steps, optimizer, lr, threads=threads)
        K, F = start.new_full(start.shape[-1:], 1 - lr * optimizer.weight_decay), start.new_zeros(start.shape[-1:])
        for k_P, f_P in known:
            K[: len(k_P)] -= lr * k_P
            F[: len(f_P)] += lr * f_P
        return cls(steps, optimizer, lr, (K, F), threads)

    def _rule(self) -> tuple[int, float, float, float, float, float]:
        """Kind, gain, keep, decay, beta1 and beta2, as C takes them."""
        if isinstance(self.optimizer, Adam):
            return ADAM, 1.0, 0.0, 0.0, self.optimizer.beta1, self.optimizer.beta2
        decay = self.lr * self.optimizer.weight_decay
        if not self.optimizer.momentum:
            return PLAIN, self.lr, 1 - decay, 0.0, 0.0, 0.0
        return MOMENTUM, self.lr, self.optimizer.momentum, decay, 0.0, 0.0

    def train(
        self, samples: Samples, batches: Batches, steps_c: Tensor, start_cP: Tensor, out_cP: Tensor, loss_c: Tensor,
        slots: Tensors, count_c: Tensor, keys_cJk: Tensor | None, states: Tensors, shared: int = 0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Train some clients. Writes their weights to `out_cP`, but in its first `shared` columns the update (trained -
        start); returns whether these columns are finite, and their squared lengths. Adds the losses of each client's
        steps to `loss_c`.

        `slots` (optimizer state, where momentum is -lr times itself) and `states` (BatchNorm's statistics) are
        overwritten; `count_c` are the optimizer steps made before, `keys_cJk` the dropout keys.
        """
        model, optimizer, run = self.steps, self.optimizer, train_function(start_cP.dtype)
        assert run is not None
        rows_cJB, steps_c = batches.row_cJB.contiguous(), steps_c.contiguous()
        keys_cJk = None if keys_cJk is None else keys_cJk.contiguous()
        factors = None  # Adam's two for every client and step [c, J, 2]
        if isinstance(optimizer, Adam):
            count_cJ = count_c[:, None] + torch.arange(1, rows_cJB.shape[1] + 1)
            factors = torch.stack(optimizer.factors(count_cJ.flatten(), self.lr), 1).to(torch.float64).contiguous()
        moments = [*slots.values(), None, None][:2]
        stride = 0 if moments[0] is None else moments[0].stride(0)
        running = [states[f"{norm}.running_{s}"] for norm in model.norms for s in ("mean", "var")]
        statistics_cS = torch.cat(running, 1).to(start_cP.dtype) if running else None  # one layer after another
        finite_c, squared_c = (torch.empty_like(steps_c, dtype=kind) for kind in (torch.bool, torch.float64))
        wrong = run(
            *(at(model.layers), len(model.layers)),
            *(at(samples.x), prod(model.shape), at(samples.y)),
            *(at(rows_cJB), rows_cJB.shape[1], rows_cJB.shape[2], at(steps_c), len(steps_c)),
            *(at(start_cP), 0 if len(start_cP) == 1 else start_cP.stride(0)),
            *(*self._rule(), *map(at, self.springs)),
            *(at(factors), *map(at, moments), stride, at(keys_cJk), 0 if keys_cJk is None else keys_cJk.shape[2]),
            *(at(statistics_cS), 0 if statistics_cS is None else statistics_cS.stride(0)),
            *(at(out_cP), out_cP.stride(0), shared, at(loss_c), at(finite_c), at(squared_c), self.threads),
        )
        if wrong == 1:
            raise MemoryError
        if wrong:
            raise IndexError("a label is outside the model's scores")
        if statistics_cS is not None:
            for value, trained in zip(running, statistics_cS.split([v.shape[1] for v in running], 1), strict=True):
                value.copy_(trained)
            for norm in model.norms:
                states[f"{norm}.num_batches_tracked"].add_((batches.size_cJ > 0).sum(1))
        return finite_c, squared_c


def train_function(dtype: torch.dtype) -> Any:
    """The compiled `train` for a type of number; None if it cannot be compiled."""
    return function(SOURCE, "train", ARGUMENTS, NUMBERS[dtype])
