"""Gradients by the hand-written pass of backprop.py, and its dense layers with factored weights.

Under plain SGD a large dense layer's weights are stored as a common start plus a low-rank update, W = W0 + Dᵀ X: for
every sample seen so far X has its input and D -lr times the gradient of its output, so
    x Wᵀ = x W0ᵀ + (x Xᵀ) D        d W = d W0 + (d Dᵀ) X        update = Dᵀ X
Products with the common W0 are one large product for all clients. Used where X and D are smaller than W.

Shape letters: c clients of a chunk, B batch, P parameters, R samples seen, i inputs, o outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from turnout.engine.backprop import Stack
from turnout.engine.batches import Batch
from turnout.engine.kernels.graphs import GraphCache, descend_captured
from turnout.engine.kernels.optimizer_steps import Spring
from turnout.engine.layers import REAL, BatchNorm, DenseLayer, Drop, GradientSink, SquaredGradientSink
from turnout.engine.network import Network
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


class ByHand:
    """The hand-written pass; in `descend` each weight's gradient and update are one matrix product."""

    title = "by hand"
    sees_padding = False

    def __init__(self, network: Network, stack: Stack):
        self.network, self.stack = network, stack
        self.graphs: GraphCache | None = GraphCache()
        kept = (layer for layer in stack.layers if not isinstance(layer, Drop))
        layers = tuple(replace(h, training=False) if isinstance(h, BatchNorm) else h for h in kept)
        self._evaluation = Stack(layers, stack.loss)

    def _run(self, weights: Tensors, states: Tensors, batch: Batch, sink: GradientSink) -> Tensor:
        stack = self.stack if batch.training else self._evaluation
        return stack.descend(batch.x, batch.y, batch.mask_cB, self._all(weights, states, batch), sink)

    def _all(self, weights: Tensors, states: Tensors, batch: Batch) -> Tensors:
        """Everything a layer looks up by name: parameters, buffers, dropout keys, the mask of real samples."""
        if not batch.training:
            return {**weights, **states}
        real = {} if batch.mask_cB is None else {REAL: batch.mask_cB}
        return {**weights, **states, **self.network.keyed(batch.keys_ck), **real}

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        views = self.network.layout.views
        return self._run(views(flat_cP), states, batch, GradientSink(views(out_cP), keep=0.0, scale=1.0, gain=1.0))

    def add_squares(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, fresh: bool, scale: float
    ) -> None:
        weights = {**self.network.layout.views(flat_cP), **states}
        sink = SquaredGradientSink(self.network.layout.views(into_cP), 0.0 if fresh else 1.0, scale, 1.0)
        self._evaluation.descend(batch.x, batch.y, batch.mask_cB, weights, sink)

    def chunk_weights(self, start_cP: Tensor, clients: int, samples: int) -> ChunkWeights | None:
        """A copy of a chunk's first weights outside the cohort's matrix; None if steps on the matrix are faster.

        `samples`: the most samples a client will see, or 0 if factored weights cannot be used (`Job.factored_samples`).
        """
        if start_cP.is_cuda:
            return None
        return ChunkWeights.of(self.stack, self.network.layout.views(start_cP), clients, samples)

    def factored_bytes(self, start_cP: Tensor, samples: int) -> int:
        """Bytes of one client's factored weights in such a copy; 0 if there are none."""
        if samples == 0 or len(start_cP) > 1 or start_cP.is_cuda:
            return 0
        start = self.network.layout.views(start_cP)
        shapes = [start[name].shape[-2:] for name in factored_names(self.stack, start, samples)]
        return sum(samples * (i + o) for o, i in shapes) * start_cP.element_size()

    def descend_chunk(self, own: ChunkWeights, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        """One plain SGD step on weights from `chunk_weights` (or on those of its first clients)."""
        sink = GradientSink(own.weights, 1 - lr * decay, -1.0, lr)
        weights: dict[str, Any] = {**self._all(own.weights, states, batch), **own.factored}
        return own.stack.descend(batch.x, batch.y, batch.mask_cB, weights, sink)

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        return descend_captured(self.graphs, self._fused, flat_cP, states, batch, lr, 1 - lr * decay)

    def _fused(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, gain: float | Tensor, keep: float,
        spring: Spring | None = None,
    ) -> Tensor:  # fmt: skip
        views = self.network.layout.views
        weights = views(flat_cP)
        terms = (None,) * 3 if spring is None else (spring.kept_1P, spring.shift_1P, spring.own_cP)
        pulls = [{} if value is None else views(value) for value in terms]
        return self._run(weights, states, batch, GradientSink(weights, keep, -1.0, gain, *pulls))

    def descend_sprung(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, spring: Spring) -> Tensor:
        """One plain SGD step with terms that `Spring` describes, in place: x <- kept x + shift + own - lr g."""
        fused = partial(self._fused, spring=spring)
        return descend_captured(self.graphs, fused, flat_cP, states, batch, lr, 1.0, spring.tensors())

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        return self._evaluation.outputs(x, {**self.network.layout.views(flat_cP), **states})

    def twin(self) -> ByHand:
        return ByHand(self.network.twin(), self.stack)
