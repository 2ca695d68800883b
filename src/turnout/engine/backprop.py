"""Forward and backward written by hand for plain stacks of layers, for a chunk of clients at once.

Faster than `vmap(grad)` on two counts: a weight's gradient and its plain-SGD update are one matrix product that adds
straight into the weights (`W.baddbmm_(dᵀ, x, alpha=-lr)`), and no graph is built. A convolution is a matrix product
over the unfolded image, with activations laid out as [c, channel, B, h, w] so that no step needs a transpose. On a
GPU some layers have kernels of their own (engine/kernels.py), swapped in by `Stack.descend`.

Anything else than a stack of the layers below under one of the losses of engine/losses.py falls back to `vmap`
(engine/gradients.py); both are held to the plain loop.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch, L positions of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turnout.engine.batch_norm import Normalise
from turnout.engine.dropout import AddressedDropout, keep_mask
from turnout.engine.gradient_sinks import Sink, Squares
from turnout.engine.losses import Loss
from turnout.types import Tensors

aten: Any = torch.ops.aten


class Layer(Protocol):
    """One layer's two directions; `saved` is what forward leaves for backward. Buffers arrive among the weights."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]: ...

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor: ...


@dataclass(frozen=True)
class Dense:
    """y = x Wᵀ + b for [c, B, i]."""

    weight: str
    bias: str | None

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        W_coi, b_co = weights[self.weight], None if self.bias is None else weights[self.bias]
        if W_coi.shape[1] <= x.shape[1] and not x.is_cuda:  # W xᵀ, laid out by output: twice as fast for few outputs
            x_T = x.transpose(1, 2)
            y_T = torch.bmm(W_coi, x_T) if b_co is None else torch.baddbmm(b_co.unsqueeze(2), W_coi, x_T)
            return y_T.transpose(1, 2), x
        W_T = W_coi.transpose(1, 2)
        return torch.bmm(x, W_T) if b_co is None else torch.baddbmm(b_co.unsqueeze(1), x, W_T), x

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        dx = d if first else torch.bmm(d, weights[self.weight])  # before the weights move
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

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        columns, shape = saved
        c, o, B, oh, ow = d.shape
        flat = d.reshape(c, o, B * oh * ow)
        dx = d if first else self._spread(flat, weights[self.weight].view(c, o, -1), shape, (oh, ow))
        sink.product(self.weight, flat, columns.transpose(1, 2), B)
        if self.bias is not None:
            sink.summed(self.bias, flat.view(d.shape))
        return dx

    def _spread(self, flat: Tensor, W: Tensor, shape: torch.Size, out: tuple[int, int]) -> Tensor:
        """Gradient of the input: every patch's gradient added back where the patch was taken."""
        (kh, kw), (ph, pw), (oh, ow) = self.kernel, self.padding, out
        c, i, B, h, w = shape
        patches = torch.bmm(W.transpose(1, 2), flat).view(c, i, kh, kw, B, oh, ow)
        wide = flat.new_zeros(c, i, kh, B, oh, w)  # first along the rows, then along the columns: kh + kw additions
        for b in range(kw):
            wide[..., b : b + ow] += patches[:, :, :, b]
        dx = flat.new_zeros(shape)
        for a in range(kh):
            dx[..., a : a + oh, :] += wide[:, :, a]
        return dx[..., ph : h - ph, pw : w - pw]


@dataclass(frozen=True)
class Rectify:
    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        y = x.clamp_(min=0)  # in place: no layer before it keeps its output
        return y, y

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        return aten.threshold_backward(d, saved, 0)


@dataclass(frozen=True)
class Softmax:
    """Over the features of [c, B, i], over the channels of [c, i, B, h, w]: a hidden activation in paper 002."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        y = torch.softmax(x, 2 if x.dim() == 3 else 1)
        return y, y

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        return saved * (d - (d * saved).sum(2 if d.dim() == 3 else 1, keepdim=True))


@dataclass(frozen=True)
class Pool:
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

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        if len(saved) == 2:
            x, wide = saved
            return _to_larger(_to_larger(d, wide, -2), x, -1)
        image, where, shape = saved
        flat = d.reshape(where.shape)
        args = (self.kernel, self.stride, (0, 0), (1, 1), False, where)
        return aten.max_pool2d_with_indices_backward(flat, image, *args).view(shape)

    def _in_pairs(self, x: Tensor) -> bool:
        """Large planes in windows of 2 x 2: two maxima of halves take half the time on a CPU."""
        h, w = x.shape[-2:]
        plain = self.kernel == self.stride == (2, 2) and h % 2 == w % 2 == 0
        return plain and h * w >= 256 and not x.is_cuda


def _to_larger(d: Tensor, x: Tensor, dim: int) -> Tensor:
    """The gradient of the maximum of neighbours along a dimension; of equal ones the first has it, as in torch."""
    dx, half = torch.empty_like(x), x.shape[dim] // 2
    first, second = x.unflatten(dim, (half, 2)).unbind(dim)
    here, there = dx.unflatten(dim, (half, 2)).unbind(dim)
    torch.mul(d, first >= second, out=here)
    torch.sub(d, here, out=there)
    return dx


@dataclass(frozen=True)
class Flat:
    """[c, i, B, h, w] -> [c, B, i h w]; what is flat already passes."""

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if x.dim() == 3:
            return x, None
        return x.transpose(1, 2).flatten(2), x.shape

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        if saved is None:
            return d
        c, i, B, h, w = saved
        return d.view(c, B, i, h, w).transpose(1, 2)


@dataclass(frozen=True)
class Drop:
    """Dropout with the addressed mask of engine/dropout.py (its key arrives among the weights)."""

    key: str
    p: float
    whole_channels: bool

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        if self.p == 0:
            return x, None
        image = x.dim() == 5
        one = x.transpose(1, 2) if image else x  # [c, B, ...], as a client alone sees it
        mask = keep_mask(weights[self.key], one.shape[1:], self.p, self.whole_channels, x.dtype, x.device)
        mask = mask.transpose(1, 2) if image else mask
        return x * mask, mask

    def backward(self, d: Tensor, saved: Any, weights: Tensors, sink: Sink, first: bool) -> Tensor:
        return d if saved is None else d * saved


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _translate(name: str, module: nn.Module) -> Layer | None:
    """The hand-written counterpart of one layer, or None where there is none."""
    prefix = f"{name}." if name else ""  # a model that is a layer itself has no name
    weight, bias = f"{prefix}weight", f"{prefix}bias" if getattr(module, "bias", None) is not None else None
    if isinstance(module, nn.Linear):
        return Dense(weight, bias)
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and _pair(module.stride) == (1, 1) and _pair(module.dilation) == (1, 1)
        if not plain or isinstance(module.padding, str) or module.padding_mode != "zeros":
            return None
        return Convolution(weight, bias, _pair(module.kernel_size), _pair(module.padding))
    if isinstance(module, nn.MaxPool2d):
        plain = _pair(module.padding) == (0, 0) and _pair(module.dilation) == (1, 1) and not module.ceil_mode
        return Pool(_pair(module.kernel_size), _pair(module.stride)) if plain else None
    if isinstance(module, nn.Flatten):
        return Flat() if (module.start_dim, module.end_dim) == (1, -1) else None
    if isinstance(module, nn.ReLU):
        return Rectify()
    if isinstance(module, nn.Softmax):
        return Softmax() if module.dim == 1 else None
    if isinstance(module, AddressedDropout):
        return Drop(f"{name}.key", module.p, module.whole_channels)
    return Normalise.of(name, module)


def _flatten(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of a stack of stacks, in order, with their full names; a model of another kind is one layer."""
    if type(module) is not nn.Sequential:
        return [(prefix.rstrip("."), module)]
    return [pair for name, child in module.named_children() for pair in _flatten(child, f"{prefix}{name}.")]


def by_hand(module: nn.Module, loss: Loss) -> Stack | None:
    """The hand-written form of a model, or None where it has a layer we have not written (or frozen parameters)."""
    if type(module) not in (nn.Sequential, nn.Linear) or not all(p.requires_grad for p in module.parameters()):
        return None
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(module.parameters())):  # tied weights
        return None
    layers = [_translate(name, layer) for name, layer in _flatten(module)]
    known = [layer for layer in layers if layer is not None]
    if not known or len(known) != len(layers) or not isinstance(known[-1], Dense):
        return None
    return Stack(_pool_first(known), loss)


def _pool_first(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """A rectifier before a max-pool moves behind it: the same numbers and gradients, of fewer entries.

    max(relu(a), relu(b)) = relu(max(a, b)), and both pass a gradient only to the largest entry, where it is above 0.
    """
    ordered = list(layers)
    for i in range(len(ordered) - 1):
        if isinstance(ordered[i], Rectify) and isinstance(ordered[i + 1], Pool):
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
    return tuple(ordered)


def _for_device(layers: Sequence[Layer], x: Tensor) -> Sequence[Layer]:
    """The layers as they are, or with the GPU's kernels where x is there and the kernels can be used."""
    if not x.is_cuda:
        return layers
    from turnout.engine.gpu import layers as kernels  # imports Triton, which takes a while

    return kernels.for_gpu(layers) if kernels.suit(x) else layers


@dataclass(frozen=True)
class Stack:
    """A whole model: a loss on top of the layers."""

    layers: Sequence[Layer]
    loss: Loss

    def descend(self, x: Tensor, y: Tensor, mask_cB: Tensor | None, weights: Tensors, sink: Sink) -> Tensor:
        """One backward pass into the sink; the mean loss of each client comes back."""
        layers = _for_device(self.layers, x)
        output, saved = _forward(layers, x, weights)
        loss_c, d = self.loss(output, y, mask_cB, sink.gain)
        _backward(layers, d, saved, weights, sink)
        return loss_c

    def add_squares(self, x: Tensor, y: Tensor, mask_cB: Tensor | None, weights: Tensors, targets: Tensors) -> None:
        """Add the squares of each (real) sample's own gradient to the targets."""
        output, saved = _forward(self.layers, x, weights)
        _, d = self.loss(output, y, None, x.shape[1])
        _backward(self.layers, d if mask_cB is None else d.mul_(mask_cB.unsqueeze(2)), saved, weights,
                  Squares(targets, 1.0, 1.0, 1.0))  # fmt: skip

    def in_evaluation(self) -> Stack:
        """The same model without dropout, normalising by its running statistics."""
        kept = (layer for layer in self.layers if not isinstance(layer, Drop))
        return Stack(tuple(replace(h, training=False) if isinstance(h, Normalise) else h for h in kept), self.loss)

    def outputs(self, x: Tensor, weights: Tensors) -> Tensor:
        """Scores [c, B, classes]."""
        return _forward(self.layers, x, weights)[0]


def _forward(layers: Sequence[Layer], x: Tensor, weights: Tensors) -> tuple[Tensor, list[Any]]:
    """The scores, and what each layer keeps for backward."""
    h = x.flatten(2) if isinstance(layers[0], Flat) else x
    if h.dim() == 5:  # images: [c, B, i, h, w] -> [c, i, B, h, w]
        h = h.transpose(1, 2).contiguous()
    saved: list[Any] = []
    for i, layer in enumerate(layers):
        h, kept = layer.forward(h.clone() if i == 0 and isinstance(layer, Rectify) else h, weights)
        saved.append(kept)
    return h, saved


def _backward(layers: Sequence[Layer], d: Tensor, saved: list[Any], weights: Tensors, sink: Sink) -> None:
    """From the gradient of the outputs down to the first layer that has parameters."""
    first = next(i for i, layer in enumerate(layers) if not isinstance(layer, Flat | Rectify | Pool | Drop))
    for i in reversed(range(first, len(layers))):
        d = layers[i].backward(d, saved[i], weights, sink, first=i == first)
