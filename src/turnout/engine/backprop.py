"""The hand-written pass of a plain stack of layers and its loss, for a chunk of clients at once.

Faster than `vmap(grad)`: a weight's gradient and its plain-SGD update are one matrix product that adds directly to the
weights (`W.baddbmm_(dᵀ, x, alpha=-lr)`), and no autograd graph is built. Other layers and losses are for gradients.py.

A loss takes the outputs [c, B, K], the targets, a mask of the real samples (None: all are real) and a gain. It returns
the mean loss of each client [c], and gain times its gradient with respect to the outputs [c, B, K].

Shape letters: c clients of a chunk, B batch, K scores or outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from turnout.engine.batches import shares
from turnout.engine.dropout import AddressedDropout
from turnout.engine.kernels.layers import for_gpu, supports
from turnout.engine.layers import (
    BatchNorm,
    Convolution,
    DenseLayer,
    Drop,
    Flatten,
    GradientSink,
    Layer,
    MaxPool,
    ReLU,
    Softmax,
    SquaredGradientSink,
    pair,
)
from turnout.tasks import Classification, InOwnUnit, Regression, TaskSpec
from turnout.types import Tensors

Loss = Callable[[Tensor, Tensor, Tensor | None, float | Tensor], tuple[Tensor, Tensor]]


def _mean(loss_cB: Tensor, d: Tensor, mask_cB: Tensor | None, gain: float | Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of each client and its gradient, from those of each sample; overwrites d."""
    if mask_cB is None:
        return loss_cB.mean(1), d.mul_(gain / loss_cB.shape[1])
    share_cB = shares(mask_cB)
    return (loss_cB * share_cB).sum(1), d.mul_((share_cB * gain).unsqueeze(2))


def cross_entropy(logits: Tensor, y: Tensor, mask_cB: Tensor | None, gain: float | Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of scores [c, B, classes] with labels [c, B].

    The softmax is written out: for few classes torch's own takes four times as long.
    """
    z = logits - logits.amax(2, keepdim=True)
    index = y.unsqueeze(2)
    picked = z.gather(2, index)
    e = z.exp_()
    total = e.sum(2, keepdim=True)
    loss_cB = (total.log() - picked).squeeze(2)
    d = e.div_(total).scatter_add_(2, index, torch.full_like(total, -1.0))
    return _mean(loss_cB, d, mask_cB, gain)


def soft_cross_entropy(
    logits: Tensor, y: Tensor, mask_cB: Tensor | None, gain: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy with target probabilities [c, B, classes] that sum to 1, for distillation."""
    log_q = logits.log_softmax(2)
    loss_cB = -(y * log_q).sum(2)
    d = log_q.exp_().sub_(y)
    return _mean(loss_cB, d, mask_cB, gain)


def squared_error(output: Tensor, y: Tensor, mask_cB: Tensor | None, gain: float | Tensor) -> tuple[Tensor, Tensor]:
    """Squared error, averaged over a sample's outputs.

    >>> squared_error(torch.tensor([[[1.0], [3.0]]]), torch.zeros(1, 2), None, 1.0)
    (tensor([5.]), tensor([[[1.],
             [3.]]]))
    """
    error = output - y.to(output).view_as(output)
    loss_cB = error.square().mean(2)
    d = error.mul_(2 / output.shape[2])
    return _mean(loss_cB, d, mask_cB, gain)


# Exact types: a subclass may have another loss.
BY_HAND: dict[type, Loss] = {Classification: cross_entropy, Regression: squared_error}


def loss_by_hand(task: TaskSpec) -> Loss | None:
    """The hand-written form of a task's loss; None if there is none."""
    return BY_HAND.get(type(task.task if isinstance(task, InOwnUnit) else task))


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
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine and module.track_running_stats:
        return None if module.momentum is None else BatchNorm(name, module.eps, module.momentum)
    return None
