"""Forward and backward pass of a plain stack of layers, written by hand, for a chunk of clients at once.

Faster than `vmap(grad)`: a weight's gradient and its plain-SGD update are one matrix product that adds directly to the
weights (`W.baddbmm_(dᵀ, x, alpha=-lr)`), and no autograd graph is built. Other layers and losses are for autograd.py.

Shape letters: c clients of a chunk, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from turnout.engine.dropout import AddressedDropout
from turnout.engine.gradient_sinks import GradientSink, SquaredGradientSink
from turnout.engine.kernels.layers import for_gpu, supports
from turnout.engine.layers import BatchNorm, Convolution, DenseLayer, Drop, Flatten, Layer, MaxPool, ReLU, Softmax, pair
from turnout.engine.losses import Loss
from turnout.types import Tensors


@dataclass(frozen=True)
class Stack:
    """A whole model: its layers in order, and the loss of their output."""

    layers: Sequence[Layer]
    loss: Loss

    def descend(self, x: Tensor, y: Tensor, mask_cB: Tensor | None, weights: Tensors, sink: GradientSink) -> Tensor:
        """One forward and backward pass, gradients into the sink; returns the mean loss of each client."""
        layers = for_gpu(self.layers) if supports(x) else self.layers
        output, saved = _forward(layers, x, weights)
        if isinstance(sink, SquaredGradientSink):  # each sample's own gradient, not its share of the mean
            loss_c, d = self.loss(output, y, None, x.shape[1])
            d = d if mask_cB is None else d.mul_(mask_cB.unsqueeze(2))
        else:
            loss_c, d = self.loss(output, y, mask_cB, sink.gain)
        first = next(i for i, layer in enumerate(layers) if not isinstance(layer, Flatten | ReLU | MaxPool | Drop))
        for i in reversed(range(first, len(layers))):  # down to the first layer that has parameters
            d = layers[i].backward(d, saved[i], weights, sink, first=i == first)
        return loss_c

    def outputs(self, x: Tensor, weights: Tensors) -> Tensor:
        """The model's outputs [c, B, classes]."""
        return _forward(self.layers, x, weights)[0]


def _forward(layers: Sequence[Layer], x: Tensor, weights: Tensors) -> tuple[Tensor, list[Any]]:
    """The outputs, and what each layer saved for the backward pass."""
    h = x.flatten(2) if isinstance(layers[0], Flatten) else x
    if h.dim() == 5:  # images: [c, B, i, h, w] -> [c, i, B, h, w]
        h = h.transpose(1, 2).contiguous()
    saved: list[Any] = []
    for i, layer in enumerate(layers):
        h, kept = layer.forward(h.clone() if i == 0 and isinstance(layer, ReLU) else h, weights)
        saved.append(kept)
    return h, saved


def stack_of(module: nn.Module, loss: Loss) -> Stack | None:
    """The hand-written form of a model; None if it has a layer without one, frozen parameters or tied weights."""
    if type(module) not in (nn.Sequential, nn.Linear) or not all(p.requires_grad for p in module.parameters()):
        return None
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(module.parameters())):  # tied weights
        return None
    layers = [_layer_of(name, layer) for name, layer in _flatten(module)]
    known = [layer for layer in layers if layer is not None]
    if not known or len(known) != len(layers) or not isinstance(known[-1], DenseLayer):
        return None
    for i in range(len(known) - 1):
        # A max-pool before the ReLU has the same outputs and gradients, computed on fewer entries: max(relu(a),
        # relu(b)) = relu(max(a, b)), and both orders pass a gradient only to the largest entry, if it is above 0.
        if isinstance(known[i], ReLU) and isinstance(known[i + 1], MaxPool):
            known[i], known[i + 1] = known[i + 1], known[i]
    return Stack(tuple(known), loss)


def _flatten(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of nested `nn.Sequential`s in order, with their full names; any other module is one layer."""
    if type(module) is not nn.Sequential:
        return [(prefix.rstrip("."), module)]
    return [pair for name, child in module.named_children() for pair in _flatten(child, f"{prefix}{name}.")]


def _layer_of(name: str, module: nn.Module) -> Layer | None:
    """The hand-written form of one layer; None if there is none."""
    prefix = f"{name}." if name else ""  # a model that is a single layer has no name
    weight, bias = f"{prefix}weight", f"{prefix}bias" if getattr(module, "bias", None) is not None else None
    if isinstance(module, nn.Linear):
        return DenseLayer(weight, bias)
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and pair(module.stride) == (1, 1) and pair(module.dilation) == (1, 1)
        if not plain or isinstance(module.padding, str) or module.padding_mode != "zeros":
            return None
        return Convolution(weight, bias, pair(module.kernel_size), pair(module.padding))
    if isinstance(module, nn.MaxPool2d):
        plain = pair(module.padding) == (0, 0) and pair(module.dilation) == (1, 1) and not module.ceil_mode
        return MaxPool(pair(module.kernel_size), pair(module.stride)) if plain else None
    if isinstance(module, nn.Flatten):
        return Flatten() if (module.start_dim, module.end_dim) == (1, -1) else None
    if isinstance(module, nn.ReLU):
        return ReLU()
    if isinstance(module, nn.Softmax):
        return Softmax() if module.dim == 1 else None
    if isinstance(module, AddressedDropout):
        return Drop(f"{name}.key", module.p, module.whole_channels)
    return BatchNorm.of(name, module)
