"""Dense layers that follow plain SGD without moving their weights, where everybody starts from the same ones.

After some steps a client's weights are W = W0 + Dᵀ X: the common start, and for every sample that was seen its input
(a row of X) and -lr times the gradient of its output (a row of D). So

    x Wᵀ = x W0ᵀ + (x Xᵀ) D        d W = d W0 + (d Dᵀ) X        update = Dᵀ X

W0 is one matrix for all clients of a chunk: a product with it is one large product instead of many thin ones, and it
stays in the cache, where weights of their own would be read and written in every step. It pays where a client sees few
samples for the size of the layer.

Shape letters: c clients of a chunk, B batch, R samples seen, i inputs, o outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from turnout.engine.backprop import Dense, Layer, Stack
from turnout.engine.gradient_sinks import Sink
from turnout.types import Tensors


class Trail:
    """What one layer's clients have seen so far: `used` rows, zeros for those who had stopped by then."""

    def __init__(self, start_oi: Tensor, clients: int, samples: int):
        o, i = start_oi.shape
        self.start_oi = start_oi
        self.x_cRi = start_oi.new_empty(clients, samples, i)
        self.d_cRo = start_oi.new_empty(clients, samples, o)
        self.used = 0

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ for the first clients; x [c, B, i] is kept."""
        c, B, i = x.shape
        now = slice(self.used, self.used + B)
        self.x_cRi[:c, now] = x
        self.x_cRi[c:, now] = 0
        y = torch.mm(x.reshape(c * B, i), self.start_oi.t()).view(c, B, -1)
        if self.used:
            x_cRi, d_cRo = self._before(c)
            y.baddbmm_(torch.bmm(x, x_cRi.transpose(1, 2)), d_cRo)
        return y

    def backward(self, d: Tensor, first: bool) -> Tensor:
        """d W for the first clients, and one step of SGD; d [c, B, o] is lr times the gradient of the outputs."""
        c, B, o = d.shape
        dx = d if first else torch.mm(d.reshape(c * B, o), self.start_oi).view(c, B, -1)
        if self.used and not first:
            x_cRi, d_cRo = self._before(c)
            dx.baddbmm_(torch.bmm(d, d_cRo.transpose(1, 2)), x_cRi)
        now = slice(self.used, self.used + B)
        torch.neg(d, out=self.d_cRo[:c, now])
        self.d_cRo[c:, now] = 0
        self.used += B
        return dx

    def _before(self, c: int) -> tuple[Tensor, Tensor]:
        return self.x_cRi[:c, : self.used], self.d_cRo[:c, : self.used]

    def write_update(self, out_coi: Tensor) -> None:
        """What the steps have added to the start, client by client: each is one piece of memory."""
        x_cRi, d_cRo = self._before(len(self.x_cRi))
        for d_Ro, x_Ri, out_oi in zip(d_cRo, x_cRi, out_coi, strict=True):
            torch.mm(d_Ro.t(), x_Ri, out=out_oi)


@dataclass(frozen=True)
class Followed:
    """A dense layer whose weights are a trail."""

    weight: str
    bias: str | None

    def forward(self, x: Tensor, weights: Any) -> tuple[Tensor, Any]:
        y = weights[self.weight].forward(x)
        return (y if self.bias is None else y.add_(weights[self.bias].unsqueeze(1))), None

    def backward(self, d: Tensor, saved: Any, weights: Any, sink: Sink, first: bool) -> Tensor:
        dx = weights[self.weight].backward(d, first)
        if self.bias is not None:
            sink.total(self.bias, d.sum(1))
        return dx


@dataclass(frozen=True)
class Loose:
    """A chunk's weights in memory of their own: tensors [c, ...], and trails in the place of large matrices."""

    stack: Stack
    weights: Tensors
    trails: dict[str, Trail]

    @classmethod
    def of(cls, stack: Stack, start: Tensors, clients: int, samples: int) -> Loose:
        """From a common start [1, ...] or everybody's own [c, ...], for clients that will see so many samples.

        Contiguous copies: an update in place of a strided weight goes through a temporary one.
        """
        shared = samples > 0 and all(len(value) == 1 for value in start.values())
        names = followed(stack, start, samples) if shared else frozenset()
        trails = {name: Trail(start[name][0], clients, samples) for name in names}
        rest = {name: value for name, value in start.items() if name not in names}
        plain = torch.contiguous_format
        copies = {n: v.expand(clients, *v.shape[1:]).clone(memory_format=plain) for n, v in rest.items()}
        return cls(following(stack, names), copies, trails)

    def first(self, clients: int) -> Loose:
        """Those who are still at work."""
        return Loose(self.stack, {name: value[:clients] for name, value in self.weights.items()}, self.trails)

    def write_update(self, name: str, start: Tensor, out: Tensor) -> None:
        """One parameter's change since the start."""
        if name in self.trails:
            self.trails[name].write_update(out)
        else:
            torch.sub(self.weights[name], start, out=out)


def followed(stack: Stack, start: Tensors, samples: int) -> frozenset[str]:
    """The dense layers for which a trail of so many samples is smaller than weights of one's own."""
    sizes = {h.weight: start[h.weight].shape[-2:] for h in stack.layers if isinstance(h, Dense)}
    return frozenset(name for name, (o, i) in sizes.items() if samples * (i + o) <= i * o)


def trail_bytes(stack: Stack, start: Tensors, samples: int) -> int:
    """What the trails of one client take; 0 where no layer is followed."""
    shapes = [start[name].shape[-2:] for name in followed(stack, start, samples)]
    return sum(samples * (i + o) for o, i in shapes) * next(iter(start.values())).element_size()


def following(stack: Stack, names: frozenset[str]) -> Stack:
    """The same model, with trails in the place of these weights."""

    def layer(h: Layer) -> Layer:
        return Followed(h.weight, h.bias) if isinstance(h, Dense) and h.weight in names else h

    return replace(stack, layers=tuple(layer(h) for h in stack.layers))
