"""The layers of engine/layers.py that have Triton kernels on a GPU (float32 only).

`for_gpu` swaps them in. Their results equal the plain layers' up to rounding; for a shape without a kernel they call
the plain layer.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnout.engine.kernels import convolution, dense, few_channels, pixels, small_layers
from turnout.engine.layers import Convolution, DenseLayer, Drop, GradientSink, Layer, MaxPool, SquaredGradientSink
from turnout.machine import triton_tools
from turnout.types import Tensors


@dataclass(frozen=True)
class GatheredConvolution(Convolution):
    """A convolution without unfolding: backward needs only the input. Its result is stored pixel by pixel."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        bias = None if self.bias is None else weights[self.bias]
        W = weights[self.weight]
        if pixels.pays(W):
            x = pixels.by_pixel(x)
            return pixels.convolve(x, W, bias, self.padding), x
        return convolution.convolve(x, W, bias, self.padding, order=_order(W)), x

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        W = weights[self.weight]
        if pixels.pays(W):
            d, squared = pixels.by_pixel(d), isinstance(sink, SquaredGradientSink)
            dx = d if first else pixels.input_gradient(d, W, self.padding, (saved.shape[3], saved.shape[4]))
            g, g_bias = pixels.weight_gradient(saved, d, self.kernel, self.padding, squared)
            sink.total(self.weight, g)
            if self.bias is not None:
                sink.total(self.bias, g_bias)
            return dx
        order, size = _order(W), tuple(saved.shape[3:])
        d = pixels.by_pixel(d) if order == convolution.PIXELS else d
        d = d.contiguous() if order == convolution.CHANNELS else d
        inner = convolution.SAMPLES if few_channels.few(W.shape[2]) else convolution.CHANNELS
        dx = d if first else convolution.input_gradient(d, W, self.padding, size, order=inner)
        if isinstance(sink, SquaredGradientSink):
            g_BcoK = convolution.weight_gradient(saved, d, self.kernel, self.padding, False, by_sample=True)
            sink.total(self.weight, g_BcoK.square_().sum(0).view(W.shape))
            if self.bias is not None:
                sink.summed(self.bias, d)
            return dx
        together = self.bias is not None and convolution.bias_is_free(W)
        g_coK = convolution.weight_gradient(saved, d, self.kernel, self.padding, together)
        sink.total(self.weight, g_coK[..., : W[0, 0].numel()].view(W.shape))
        if self.bias is not None:
            sink.total(self.bias, g_coK[..., -1] if together else d.sum((2, 3, 4)))
        return dx


@dataclass(frozen=True)
class StreamedDense(DenseLayer):
    """A dense layer that reads its weights once in forward, and reads and writes them once in backward."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        W = weights[self.weight]
        if not dense.streams(x, W):
            return super().forward(x, weights)
        return dense.forward(x, W, None if self.bias is None else weights[self.bias]), x

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        W, target = weights[self.weight], sink.targets[self.weight]
        if not dense.pays(saved, W):
            return super().backward(d, saved, weights, sink, first)
        if isinstance(sink, SquaredGradientSink):  # of a sample the gradient is d xᵀ, its square d² x²ᵀ
            lower = d if first else torch.bmm(d, W)
            dense.backward(d.square(), saved.square(), W, target, sink.keep, sink.scale, need_input=False)
            if self.bias is not None:
                sink.summed(self.bias, d)
            return lower
        spring = None
        if self.weight in sink.kept:
            spring = sink.kept[self.weight], sink.shift[self.weight], sink.own.get(self.weight)
        dx = dense.backward(d, saved, W, target, sink.keep, sink.scale, not first, spring)
        if self.bias is not None:
            sink.total(self.bias, d.sum(1))
        return d if dx is None else dx


@dataclass(frozen=True)
class HashedDrop(Drop):
    """Dropout that computes its mask again in backward instead of saving it."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if not 0 < self.p < 1:
            return super().forward(x, weights)
        key_c = weights[self.key]
        return small_layers.drop(x, key_c, self.p, self.whole_channels), key_c

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        if not 0 < self.p < 1:
            return super().backward(d, saved, weights, sink, first)
        return small_layers.drop(d, saved, self.p, self.whole_channels)


@dataclass(frozen=True)
class TiledMaxPool(MaxPool):
    """Max-pooling without overlap; saves one byte per window: which entry was the largest."""

    def _tiles(self) -> bool:
        return self.kernel == self.stride and self.kernel[0] * self.kernel[1] < 255

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if not self._tiles():
            return super().forward(x, weights)
        by_pixel = x.stride(1) == 1 and x.shape[1] > 1
        y, which = (small_layers.pool_pixels if by_pixel else small_layers.pool)(x, self.kernel)
        return y, (which, tuple(x.shape[3:]), by_pixel)

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        if not self._tiles():
            return super().backward(d, saved, weights, sink, first)
        which, size, by_pixel = saved
        return (small_layers.unpool_pixels if by_pixel else small_layers.unpool)(d, which, self.kernel, size)


def _order(W: Tensor) -> str:
    """The order of a convolution's result in memory that suits the next layer."""
    if few_channels.few(W.shape[1]):
        return convolution.SAMPLES
    return convolution.PIXELS if pixels.fits(W.shape[1]) else convolution.CHANNELS


# Plain layer -> layer with kernels; remove an entry to use the plain layer.
SWAPPED: dict[type, type] = {
    Convolution: GatheredConvolution,
    DenseLayer: StreamedDense,
    Drop: HashedDrop,
    MaxPool: TiledMaxPool,
}


def supports(x: Tensor) -> bool:
    """Whether the Triton kernels work for activations like x: float32 on this thread's GPU."""
    here = x.is_cuda and x.device.index == torch.cuda.current_device()
    return here and x.dtype == torch.float32 and triton_tools.installed()


def for_gpu(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The same layers, replaced by those with kernels where there are any."""
    return tuple(SWAPPED[type(h)](**vars(h)) if type(h) in SWAPPED else h for h in layers)
