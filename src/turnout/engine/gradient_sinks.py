"""Where the hand-written backward pass puts the gradients of the parameters: added to a target, or squared sample by
sample.

Activations are [c, B, i], or [c, i, B, h, w] where they are images.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch (or i), N samples and positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.types import Tensors


def positions(x: Tensor) -> tuple[int, ...]:
    """The dimensions of the samples and, of images, of their places."""
    return (1,) if x.dim() == 3 else (2, 3, 4)


@dataclass(frozen=True)
class Sink:
    """Where a parameter's gradient goes: `target <- keep * target + scale * gradient`.

    Fused plain SGD: the weights themselves, with keep = 1 - lr * weight decay, scale = -1 and gain = lr. For everything
    else: a gradient matrix, with keep = 0, scale = 1 and gain = 1. The gain multiplies the small gradient of the
    scores, on which all others depend linearly, so it may be a tensor that changes between replays of a graph.
    """

    targets: Tensors
    keep: float
    scale: float
    gain: float | Tensor

    def product(self, name: str, a_coN: Tensor, b_cNK: Tensor, samples: int) -> None:
        """The gradient of a weight: a sum over N, which is sample after sample, each of as many positions."""
        target = self.targets[name]
        target.view(target.shape[0], target.shape[1], -1).baddbmm_(a_coN, b_cNK, beta=self.keep, alpha=self.scale)

    def summed(self, name: str, value: Tensor) -> Tensor:
        """The gradient of a number that is added everywhere: the sum over samples and positions, which comes back."""
        sum_ = value.sum(positions(value), keepdim=True)
        self.total(name, sum_.view_as(self.targets[name]))
        return sum_

    def total(self, name: str, gradient: Tensor) -> None:
        target = self.targets[name]
        if self.keep == 0:
            torch.mul(gradient, self.scale, out=target)
        else:
            kept = target if self.keep == 1 else target.mul_(self.keep)
            kept.add_(gradient, alpha=self.scale)


@dataclass(frozen=True)
class Squares(Sink):
    """Adds up the squares of each sample's own gradient instead: target <- target + Σ_s g_s².

    In a dense layer g_s is an outer product, so that Σ_s g_s² = (d²)ᵀ x² is one product as well.
    """

    def product(self, name: str, a_coN: Tensor, b_cNK: Tensor, samples: int) -> None:
        target, each = self.targets[name], a_coN.shape[2] // samples
        total_coK = target.view(target.shape[0], target.shape[1], -1)
        if each == 1:
            total_coK.baddbmm_(a_coN.square(), b_cNK.square())
            return
        for s in range(0, a_coN.shape[2], each):
            g_coK = torch.bmm(a_coN[:, :, s : s + each], b_cNK[:, s : s + each])
            total_coK.addcmul_(g_coK, g_coK)

    def summed(self, name: str, value: Tensor) -> Tensor:
        each = value if value.dim() == 3 else value.sum((3, 4)).transpose(1, 2)  # [c, B, i]
        self.targets[name].add_(each.square().sum(1).view_as(self.targets[name]))
        return value.sum(positions(value), keepdim=True)
