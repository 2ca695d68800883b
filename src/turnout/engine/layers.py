"""The layers of the hand-written pass: forward and backward of each, for a chunk of clients at once.

A convolution is a matrix product over the unfolded image. Activations are [c, B, i], or [c, i, B, h, w] for images, so
that no step needs a transpose.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch, L positions of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from turnout.engine.dropout import keep_mask
from turnout.engine.gradient_sinks import GradientSink
from turnout.types import Tensors

aten: Any = torch.ops.aten


class Layer(Protocol):
    """Forward and backward of one layer. `weights` has parameters and buffers; `saved` is what forward keeps for
    backward.

    `first`: no layer below has parameters, so the gradient of the input is not needed.
    """

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]: ...

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor: ...


@dataclass(frozen=True)
class Dense:
    """y = x Wᵀ + b for [c, B, i]."""

    weight: str
    bias: str | None

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        W_coi, b_co = weights[self.weight], None if self.bias is None else weights[self.bias]
        if W_coi.shape[1] <= x.shape[1] and not x.is_cuda:  # few outputs: W xᵀ is twice as fast as x Wᵀ
            x_T = x.transpose(1, 2)
            y_T = torch.bmm(W_coi, x_T) if b_co is None else torch.baddbmm(b_co.unsqueeze(2), W_coi, x_T)
            return y_T.transpose(1, 2), x
        W_T = W_coi.transpose(1, 2)
        return torch.bmm(x, W_T) if b_co is None else torch.baddbmm(b_co.unsqueeze(1), x, W_T), x

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        dx = d if first else torch.bmm(d, weights[self.weight])  # before the sink changes the weights
        sink.product(self.weight, d.transpose(1, 2), saved, d.shape[1])
        if self.bias is not None:
            sink.summed(self.bias, d)
        return dx


@dataclass(frozen=True)
class Convolution:
    """A stride-1 convolution of [c, i, B, h, w] as one product per client: W[o, K] @ columns[K, B L]."""

    weight: str
    bias: str | None
    kernel: tuple[int, int]
    padding: tuple[int, int]

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        (kh, kw), (ph, pw) = self.kernel, self.padding
        if ph or pw:
            x = F.pad(x, (pw, pw, ph, ph))
        c, i, B, h, w = x.shape
        oh, ow = h - kh + 1, w - kw + 1
        s = x.stride()
        windows = x.as_strided((c, i, kh, kw, B, oh, ow), (s[0], s[1], s[3], s[4], s[2], s[3], s[4]))
        columns = windows.reshape(c, i * kh * kw, B * oh * ow)
        W = weights[self.weight].view(c, -1, i * kh * kw)
        bias = None if self.bias is None else weights[self.bias].unsqueeze(2)
        y = torch.bmm(W, columns) if bias is None else torch.baddbmm(bias, W, columns)
        return y.view(c, -1, B, oh, ow), (columns, x.shape)

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        columns, shape = saved
        c, o, B, oh, ow = d.shape
        flat = d.reshape(c, o, B * oh * ow)
        dx = d if first else self._spread(flat, weights[self.weight].view(c, o, -1), shape, (oh, ow))
        sink.product(self.weight, flat, columns.transpose(1, 2), B)
        if self.bias is not None:
            sink.summed(self.bias, flat.view(d.shape))
        return dx

    def _spread(self, flat: Tensor, W: Tensor, shape: torch.Size, out: tuple[int, int]) -> Tensor:
        """Gradient of the input: each patch's gradient, added up where the patch was read."""
        (kh, kw), (ph, pw), (oh, ow) = self.kernel, self.padding, out
        c, i, B, h, w = shape
        patches = torch.bmm(W.transpose(1, 2), flat).view(c, i, kh, kw, B, oh, ow)
        wide = flat.new_zeros(c, i, kh, B, oh, w)  # rows first, then columns: kh + kw additions instead of kh * kw
        for b in range(kw):
            wide[..., b : b + ow] += patches[:, :, :, b]
        dx = flat.new_zeros(shape)
        for a in range(kh):
            dx[..., a : a + oh, :] += wide[:, :, a]
        return dx[..., ph : h - ph, pw : w - pw]


@dataclass(frozen=True)
class ReLU:
    """max(x, 0), in place."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        y = x.clamp_(min=0)  # a layer below that saved its output (ReLU, Softmax) has nothing under 0
        return y, y

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        return aten.threshold_backward(d, saved, 0)


@dataclass(frozen=True)
class Softmax:
    """Softmax over features of [c, B, i] or channels of [c, i, B, h, w]; a hidden activation in paper 002."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        y = torch.softmax(x, 2 if x.dim() == 3 else 1)
        return y, y

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        return saved * (d - (d * saved).sum(2 if d.dim() == 3 else 1, keepdim=True))


@dataclass(frozen=True)
class MaxPool:
    """Max-pooling of [c, i, B, h, w] over the last two dimensions."""

    kernel: tuple[int, int]
    stride: tuple[int, int]

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if self._in_pairs(x):
            wide = torch.maximum(x[..., 0::2], x[..., 1::2])
            return torch.maximum(wide[..., 0::2, :], wide[..., 1::2, :]), (x, wide)
        c, i, B, h, w = x.shape
        image = x.reshape(c * i, B, h, w)
        y, where = aten.max_pool2d_with_indices(image, self.kernel, self.stride)
        return y.view(c, i, B, *y.shape[2:]), (image, where, x.shape)

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        if len(saved) == 2:
            x, wide = saved
            return _to_larger(_to_larger(d, wide, -2), x, -1)
        image, where, shape = saved
        flat = d.reshape(where.shape)
        args = (self.kernel, self.stride, (0, 0), (1, 1), False, where)
        return aten.max_pool2d_with_indices_backward(flat, image, *args).view(shape)

    def _in_pairs(self, x: Tensor) -> bool:
        """Large images, windows of 2 x 2: on a CPU two elementwise maxima take half the time of torch's pooling."""
        h, w = x.shape[-2:]
        plain = self.kernel == self.stride == (2, 2) and h % 2 == w % 2 == 0
        return plain and h * w >= 256 and not x.is_cuda


def _to_larger(d: Tensor, x: Tensor, dim: int) -> Tensor:
    """Gradient of the maximum of neighbours along a dimension; of two equal ones the first gets it, as in torch."""
    dx, half = torch.empty_like(x), x.shape[dim] // 2
    first, second = x.unflatten(dim, (half, 2)).unbind(dim)
    here, there = dx.unflatten(dim, (half, 2)).unbind(dim)
    torch.mul(d, first >= second, out=here)
    torch.sub(d, here, out=there)
    return dx


@dataclass(frozen=True)
class Flatten:
    """[c, i, B, h, w] -> [c, B, i h w]; [c, B, i] stays as it is."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if x.dim() == 3:
            return x, None
        return x.transpose(1, 2).flatten(2), x.shape

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        if saved is None:
            return d
        c, i, B, h, w = saved
        return d.view(c, B, i, h, w).transpose(1, 2)


@dataclass(frozen=True)
class Drop:
    """Dropout with the addressed mask of engine/dropout.py; the mask's key is one of the weights."""

    key: str
    p: float
    whole_channels: bool

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if self.p == 0:
            return x, None
        image = x.dim() == 5
        one = x.transpose(1, 2) if image else x  # [c, B, ...]: masks are addressed sample by sample
        mask = keep_mask(weights[self.key], one.shape[1:], self.p, self.whole_channels, x.dtype, x.device)
        mask = mask.transpose(1, 2) if image else mask
        return x * mask, mask

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        return d if saved is None else d * saved
