"""The layers of engine/backprop.py that have kernels of their own on a GPU, float32.

`for_gpu` swaps them in where Triton is installed; what they compute is what the plain layers compute, to rounding.
A layer that has no kernel for a shape passes the call on to the plain one.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from turnout.engine.backprop import Convolution, Dense, Drop, Layer, Pool
from turnout.engine.gpu import convolution as conv_kernels
from turnout.engine.gpu import dense as dense_kernels
from turnout.engine.gpu import pooling as light_kernels
from turnout.engine.gpu import triton_tools as tritons
from turnout.engine.gradient_sinks import Sink
from turnout.types import Tensors


@dataclass(frozen=True)
class GatheredConvolution(Convolution):
    """No unfolded image: the input itself is kept for backward."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        bias = None if self.bias is None else weights[self.bias]
        return conv_kernels.convolve(x, weights[self.weight], bias, self.padding), x

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        W, d = weights[self.weight], d.contiguous()
        dx = d if first else conv_kernels.input_gradient(d, W, self.padding, tuple(saved.shape[3:]))
        together = self.bias is not None and conv_kernels.BIAS_IN_PRODUCT
        g_coK = conv_kernels.weight_gradient(saved, d, self.kernel, self.padding, together)
        sink.total(self.weight, g_coK[..., : W[0, 0].numel()].view(W.shape))
        if self.bias is not None:
            sink.total(self.bias, g_coK[..., -1] if together else d.sum((2, 3, 4)))
        return dx


@dataclass(frozen=True)
class StreamedDense(Dense):
    """Weights are read once forward, and read and written once backward."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        W = weights[self.weight]
        if not dense_kernels.pays(x, W):
            return super().forward(x, weights)
        return dense_kernels.forward(x, W, None if self.bias is None else weights[self.bias]), x

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        W, target = weights[self.weight], sink.targets[self.weight]
        if not dense_kernels.pays(saved, W):
            return super().backward(d, saved, weights, sink, first)
        dx = dense_kernels.backward(d, saved, W, target, sink.keep, sink.scale, need_input=not first)
        if self.bias is not None:
            sink.total(self.bias, d.sum(1))
        return d if dx is None else dx


@dataclass(frozen=True)
class HashedDrop(Drop):
    """The mask is hashed anew in each direction instead of kept."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if not 0 < self.p < 1:
            return super().forward(x, weights)
        key_c = weights[self.key]
        return light_kernels.drop(x, key_c, self.p, self.whole_channels), key_c

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        if not 0 < self.p < 1:
            return super().backward(d, saved, weights, sink, first)
        return light_kernels.drop(d, saved, self.p, self.whole_channels)


@dataclass(frozen=True)
class TiledPool(Pool):
    """Windows side by side: one byte per window says which entry was the largest."""

    def _tiles(self) -> bool:
        return self.kernel == self.stride and self.kernel[0] * self.kernel[1] < 255

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if not self._tiles():
            return super().forward(x, weights)
        y, which = light_kernels.pool(x, self.kernel)
        return y, (which, tuple(x.shape[3:]))

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        if not self._tiles():
            return super().backward(d, saved, weights, sink, first)
        return light_kernels.unpool(d, saved[0], self.kernel, saved[1])


# What is swapped; an entry taken out leaves the plain layer.
SWAPPED: dict[type, type] = {
    Convolution: GatheredConvolution,
    Dense: StreamedDense,
    Drop: HashedDrop,
    Pool: TiledPool,
}


def suit(x: Tensor) -> bool:
    """Whether the kernels can work on activations like x."""
    here = x.is_cuda and x.device.index == torch.cuda.current_device()
    return here and x.dtype == torch.float32 and tritons.installed()


def for_gpu(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The same layers, those with kernels swapped for their counterparts."""
    return tuple(_swapped(layer) for layer in layers)


def _swapped(layer: Any) -> Layer:
    other = SWAPPED.get(type(layer))
    return layer if other is None else other(**{f.name: getattr(layer, f.name) for f in fields(layer)})
