"""Dense layers under plain SGD whose weights are stored as a common start plus a low-rank update.

W = W0 + Dᵀ X: for every sample seen so far X has its input and D -lr times the gradient of its output, so
    x Wᵀ = x W0ᵀ + (x Xᵀ) D        d W = d W0 + (d Dᵀ) X        update = Dᵀ X
Products with the common W0 are one large product for all clients. Used where X and D are smaller than W.

Shape letters: c clients of a chunk, B batch, R samples seen, i inputs, o outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from turnout.engine.backprop import Stack
from turnout.engine.gradient_sinks import GradientSink
from turnout.engine.layers import DenseLayer
from turnout.types import Tensors


class FactoredWeight:
    """One layer's W0, X and D for a chunk of clients, of which the first `used` rows are filled (0: no steps left)."""

    def __init__(self, start_oi: Tensor, clients: int, samples: int):
        o, i = start_oi.shape
        self.start_oi = start_oi
        self.x_cRi = start_oi.new_empty(clients, samples, i)
        self.d_cRo = start_oi.new_empty(clients, samples, o)
        self.used = 0

    def filled(self, clients: int) -> tuple[Tensor, Tensor]:
        """X and D of the first clients so far."""
        return self.x_cRi[:clients, : self.used], self.d_cRo[:clients, : self.used]


@dataclass(frozen=True)
class FactoredDense:
    """A dense layer whose weight is a `FactoredWeight`, for the first c of its clients."""

    weight: str
    bias: str | None

    def forward(self, x: Tensor, weights: Any) -> tuple[Tensor, Any]:
        """x Wᵀ + b; x [c, B, i] becomes the next rows of X."""
        own: FactoredWeight = weights[self.weight]
        c, B, i = x.shape
        now = slice(own.used, own.used + B)
        own.x_cRi[:c, now] = x
        own.x_cRi[c:, now] = 0
        y = torch.mm(x.reshape(c * B, i), own.start_oi.t()).view(c, B, -1)
        if own.used:
            x_cRi, d_cRo = own.filled(c)
            y.baddbmm_(torch.bmm(x, x_cRi.transpose(1, 2)), d_cRo)
        return (y if self.bias is None else y.add_(weights[self.bias].unsqueeze(1))), None

    def backward(self, d: Tensor, saved: Any, weights: Any, sink: GradientSink, first: bool) -> Tensor:
        """d W, and one SGD step; d [c, B, o] is lr times the gradient of the outputs."""
        own: FactoredWeight = weights[self.weight]
        c, B, o = d.shape
        dx = d if first else torch.mm(d.reshape(c * B, o), own.start_oi).view(c, B, -1)
        if own.used and not first:
            x_cRi, d_cRo = own.filled(c)
            dx.baddbmm_(torch.bmm(d, d_cRo.transpose(1, 2)), x_cRi)
        now = slice(own.used, own.used + B)
        torch.neg(d, out=own.d_cRo[:c, now])
        own.d_cRo[c:, now] = 0
        own.used += B
        if self.bias is not None:
            sink.total(self.bias, d.sum(1))
        return dx


@dataclass(frozen=True)
class ChunkWeights:
    """A chunk's weights outside the cohort's matrix.

    stack      the model, with its factored layers
    weights    the other parameters, tensors [c, ...]
    factored   the weights of large dense layers
    """

    stack: Stack
    weights: Tensors
    factored: dict[str, FactoredWeight]

    @classmethod
    def of(cls, stack: Stack, start: Tensors, clients: int, samples: int) -> ChunkWeights:
        """Copy a common start [1, ...] or each client's own [c, ...], for clients that will see at most `samples`."""
        shared = samples > 0 and all(len(value) == 1 for value in start.values())
        names = factored_names(stack, start, samples) if shared else frozenset()
        factored = {name: FactoredWeight(start[name][0], clients, samples) for name in names}
        rest = {name: value for name, value in start.items() if name not in names}
        plain = torch.contiguous_format
        copies = {n: v.expand(clients, *v.shape[1:]).clone(memory_format=plain) for n, v in rest.items()}
        layers = tuple(
            FactoredDense(h.weight, h.bias) if isinstance(h, DenseLayer) and h.weight in names else h
            for h in stack.layers
        )
        return cls(replace(stack, layers=layers), copies, factored)

    def first(self, clients: int) -> ChunkWeights:
        """The weights of the first clients, which still have steps to do."""
        return ChunkWeights(self.stack, {name: value[:clients] for name, value in self.weights.items()}, self.factored)

    def write_update(self, name: str, start: Tensor, out: Tensor) -> None:
        """Write one parameter's change since the start."""
        if name not in self.factored:
            torch.sub(self.weights[name], start, out=out)
            return
        x_cRi, d_cRo = self.factored[name].filled(len(out))
        for d_Ro, x_Ri, out_oi in zip(d_cRo, x_cRi, out, strict=True):  # each client's part of `out` is contiguous
            torch.mm(d_Ro.t(), x_Ri, out=out_oi)


def factored_names(stack: Stack, start: Tensors, samples: int) -> frozenset[str]:
    """The weights of dense layers for which X and D of so many samples are smaller than W."""
    sizes = {h.weight: start[h.weight].shape[-2:] for h in stack.layers if isinstance(h, DenseLayer)}
    return frozenset(name for name, (o, i) in sizes.items() if samples * (i + o) <= i * o)
