"""Gradients by the hand-written pass of engine/backprop.py.

Shape letters: c clients of a chunk, B batch, P parameters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from turnout.engine.backprop import Stack
from turnout.engine.batches import Batch
from turnout.engine.factored import ChunkWeights, factored_names
from turnout.engine.gradient_sinks import GradientSink, SpringSink, SquaredGradientSink
from turnout.engine.kernels.graphs import GraphCache, descend_captured
from turnout.engine.kernels.optimizer_steps import Spring
from turnout.engine.layers import REAL, BatchNorm, Drop
from turnout.engine.network import Network
from turnout.types import Tensors


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
        sink = GradientSink(weights, keep, -1.0, gain)
        if spring is not None:
            own = {} if spring.own_cP is None else views(spring.own_cP)
            sink = SpringSink(weights, keep, -1.0, gain, views(spring.kept_1P), views(spring.shift_1P), own)
        return self._run(weights, states, batch, sink)

    def descend_sprung(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, spring: Spring) -> Tensor:
        """One plain SGD step with terms that `Spring` describes, in place: x <- kept x + shift + own - lr g."""
        fused = partial(self._fused, spring=spring)
        return descend_captured(self.graphs, fused, flat_cP, states, batch, lr, 1.0, spring.tensors())

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        return self._evaluation.outputs(x, {**self.network.layout.views(flat_cP), **states})

    def twin(self) -> ByHand:
        return ByHand(self.network.twin(), self.stack)
