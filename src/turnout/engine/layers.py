"""The layers of the hand-written pass, forward and backward of each for a chunk of clients, and the sinks of gradients.

Activations are [c, B, i], or [c, i, B, h, w] for images. In BatchNorm each client normalises by the statistics of its
own batch without padding, and training updates the running statistics in place.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch (or i), L positions of an image,
N samples and positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from turnout.engine.dropout import keep_mask
from turnout.types import Tensors


def positions(x: Tensor) -> tuple[int, ...]:
    """The dimensions of samples and, for images, of positions: all but clients and features."""
    return (1,) if x.dim() == 3 else (2, 3, 4)


@dataclass(frozen=True)
class GradientSink:
    """Adds each parameter's gradient to its target: `target <- keep * target + scale * gradient`.

    For fused plain SGD the targets are the weights, with keep = 1 - lr * weight decay, scale = -1 and gain = lr.
    Otherwise they are a gradient matrix, with keep = 0, scale = 1 and gain = 1. Terms that are quadratic penalties or
    constant shifts can be part of the step: w <- (1 - lr k) w + lr f + lr d + scale * gradient.

    targets   name -> tensor to change
    keep      factor of the target
    scale     factor of the gradient
    gain      factor of the gradient of the scores, which is small and on which all others depend linearly; may be a
              tensor, so that a captured CUDA graph can be replayed with another learning rate
    kept      1 - lr k of the parameters that terms act on, [1, ...] each
    shift     lr f of the same parameters
    own       lr d, each client's own shift [c, ...], if there is one
    """

    targets: Tensors
    keep: float
    scale: float
    gain: float | Tensor
    kept: Tensors = field(default_factory=dict)
    shift: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)

    def product(self, name: str, a_coN: Tensor, b_cNK: Tensor, samples: int) -> None:
        """Add a weight's gradient, the product a b: a sum over N, the positions of one sample after another."""
        target = self._pulled(name)
        target.view(target.shape[0], target.shape[1], -1).baddbmm_(a_coN, b_cNK, beta=self.keep, alpha=self.scale)

    def summed(self, name: str, value: Tensor) -> Tensor:
        """Add a bias's gradient, the sum of `value` over samples and positions; returns that sum."""
        sum_ = value.sum(positions(value), keepdim=True)
        self.total(name, sum_.view_as(self.targets[name]))
        return sum_

    def total(self, name: str, gradient: Tensor) -> None:
        """Add a gradient that is already summed."""
        target = self._pulled(name)
        if self.keep == 0:
            torch.mul(gradient, self.scale, out=target)
        else:
            kept = target if self.keep == 1 else target.mul_(self.keep)
            kept.add_(gradient, alpha=self.scale)

    def _pulled(self, name: str) -> Tensor:
        """A parameter's target, after the terms' part of the step."""
        target = self.targets[name]
        if name in self.kept:
            torch.addcmul(self.shift[name], target, self.kept[name], out=target)
        if name in self.own:
            target.add_(self.own[name])
        return target


@dataclass(frozen=True)
class SquaredGradientSink(GradientSink):
    """Adds the squares of each sample's own gradient: target <- keep * target + scale * Σ_s g_s², keep 0 or 1.

    In a dense layer g_s is an outer product, so Σ_s g_s² = (d²)ᵀ x² is one matrix product too.
    """

    def product(self, name: str, a_coN: Tensor, b_cNK: Tensor, samples: int) -> None:
        target, each = self.targets[name], a_coN.shape[2] // samples
        total_coK = target.view(target.shape[0], target.shape[1], -1)
        if each == 1:
            total_coK.baddbmm_(a_coN.square(), b_cNK.square(), beta=self.keep, alpha=self.scale)
            return
        if self.keep == 0:
            target.zero_()
        for s in range(0, a_coN.shape[2], each):
            g_coK = torch.bmm(a_coN[:, :, s : s + each], b_cNK[:, s : s + each])
            total_coK.addcmul_(g_coK, g_coK, value=self.scale)

    def summed(self, name: str, value: Tensor) -> Tensor:
        each = value if value.dim() == 3 else value.sum((3, 4)).transpose(1, 2)  # [c, B, i]
        self.total(name, each.square().sum(1).view_as(self.targets[name]))
        return value.sum(positions(value), keepdim=True)


aten: Any = torch.ops.aten

REAL = "real samples"  # the name of the batch's mask among the weights; no parameter can have it


def pair(value: Any) -> tuple[int, int]:
    """A size or stride, as torch has it, for rows and columns."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class Layer(Protocol):
    """Forward and backward of one layer.

    `weights` has parameters and buffers; forward's second result is `saved` for backward. `first`: no layer below has
    parameters, so the gradient of the input is not needed.
    """

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]: ...

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor: ...


@dataclass(frozen=True)
class DenseLayer:
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
    """Softmax over features of [c, B, i] or channels of [c, i, B, h, w]; a hidden activation of the score track."""

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
        h, w = x.shape[-2:]
        even = self.kernel == self.stride == (2, 2) and h % 2 == w % 2 == 0
        if even and h * w >= 256 and not x.is_cuda:  # two elementwise maxima take half the time of torch's pooling
            wide = torch.maximum(x[..., 0::2], x[..., 1::2])
            return torch.maximum(wide[..., 0::2, :], wide[..., 1::2, :]), (x, wide)
        c, i, B = x.shape[:3]
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


@dataclass(frozen=True)
class BatchNorm:
    """y = γ x̂ + β with x̂ = (x - E[x]) / √(Var[x] + ε), for [c, B, i] or images [c, i, B, h, w]."""

    name: str
    eps: float
    momentum: float
    training: bool = True

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        over, shape = positions(x), _per_feature(x)
        if not self.training:
            real, samples = None, 1
            mean, var = (weights[f"{self.name}.running_{s}"].view(shape) for s in ("mean", "var"))
        else:
            mean, var, real, samples = self._statistics(x, over, weights)
            unbiased = var * (samples / (samples - 1))
            kept = weights[f"{self.name}.running_mean"]  # μ <- (1 - ρ) μ + ρ E[x], and the same for σ², as in torch
            kept.lerp_(mean.view_as(kept), self.momentum)
            weights[f"{self.name}.running_var"].lerp_(unbiased.view_as(kept), self.momentum)
            weights[f"{self.name}.num_batches_tracked"].add_(1)
        inverse = torch.rsqrt(var + self.eps)
        hat = (x - mean).mul_(inverse)
        gamma, beta = (weights[f"{self.name}.{w}"].view(shape) for w in ("weight", "bias"))
        return torch.addcmul(beta, hat, gamma), (hat, inverse, real, samples)

    def _statistics(self, x: Tensor, over: tuple[int, ...], weights: Tensors) -> tuple[Tensor, Tensor, Any, Any]:
        """Mean and variance over each client's real samples; a mask of these that broadcasts with x (None: all are
        real), and their number (times the positions of an image)."""
        if REAL not in weights:
            var, mean = torch.var_mean(x, over, correction=0, keepdim=True)
            return mean, var, None, x.numel() // mean.numel()
        mask_cB = weights[REAL]
        real = mask_cB.unsqueeze(2) if x.dim() == 3 else mask_cB.view(x.shape[0], 1, x.shape[2], 1, 1)
        samples = real.sum(over, keepdim=True) * (x[0, 0, 0].numel() if x.dim() == 5 else 1)
        mean = (x * real).sum(over, keepdim=True) / samples
        return mean, ((x - mean).square_() * real).sum(over, keepdim=True) / samples, real, samples

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: GradientSink, first: bool) -> Tensor:
        """dx = γ/√(Var + ε) · (d - mean(d) - x̂ mean(d x̂)) in training; without the means in evaluation.

        d is 0 at padded samples, so the sums ignore them; dx must be set to 0 there.
        """
        hat, inverse, real, samples = saved
        factor = weights[f"{self.name}.weight"].view(_per_feature(d)) * inverse  # before the sink changes the weights
        scale, shift = sink.summed(f"{self.name}.weight", d * hat), sink.summed(f"{self.name}.bias", d)
        if first:
            return d
        dx = d.clone()
        if self.training:
            dx.sub_(shift / samples).sub_(hat * (scale / samples))
        return dx.mul_(factor if real is None else factor * real)


def _per_feature(x: Tensor) -> tuple[int, ...]:
    """The shape of one number per client and feature, to broadcast with x."""
    return (x.shape[0], 1, x.shape[2]) if x.dim() == 3 else (x.shape[0], x.shape[1], 1, 1, 1)
