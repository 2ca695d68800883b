"""Where the hand-written backward pass writes the gradients of parameters: added to a target, or squared per sample.

Activations are [c, B, i], or [c, i, B, h, w] for images.

Shape letters: c clients of a chunk, B batch, i inputs, o outputs, K unfolded patch (or i), N samples and positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.types import Tensors


def positions(x: Tensor) -> tuple[int, ...]:
    """The dimensions of samples and, for images, of positions: all but clients and features."""
    return (1,) if x.dim() == 3 else (2, 3, 4)


@dataclass(frozen=True)
class GradientSink:
    """Adds each parameter's gradient to its target: `target <- keep * target + scale * gradient`.

    For fused plain SGD the targets are the weights, with keep = 1 - lr * weight decay, scale = -1 and gain = lr.
    Otherwise they are a gradient matrix, with keep = 0, scale = 1 and gain = 1.

    targets   name -> tensor to change
    keep      factor of the target
    scale     factor of the gradient
    gain      factor of the gradient of the scores, which is small and on which all others depend linearly; may be a
              tensor, so that a captured CUDA graph can be replayed with another learning rate
    """

    targets: Tensors
    keep: float
    scale: float
    gain: float | Tensor

    def product(self, name: str, a_coN: Tensor, b_cNK: Tensor, samples: int) -> None:
        """Add a weight's gradient, the product a b: a sum over N, the positions of one sample after another."""
        target = self.targets[name]
        target.view(target.shape[0], target.shape[1], -1).baddbmm_(a_coN, b_cNK, beta=self.keep, alpha=self.scale)

    def summed(self, name: str, value: Tensor) -> Tensor:
        """Add a bias's gradient, the sum of `value` over samples and positions; returns that sum."""
        sum_ = value.sum(positions(value), keepdim=True)
        self.total(name, sum_.view_as(self.targets[name]))
        return sum_

    def total(self, name: str, gradient: Tensor) -> None:
        """Add a gradient that is already summed."""
        target = self.targets[name]
        if self.keep == 0:
            torch.mul(gradient, self.scale, out=target)
        else:
            kept = target if self.keep == 1 else target.mul_(self.keep)
            kept.add_(gradient, alpha=self.scale)


@dataclass(frozen=True)
class SpringSink(GradientSink):
    """A step with terms that are quadratic penalties or constant shifts, together with the gradient:
    w <- (1 - lr k) w + lr f + lr d + scale * gradient.

    kept    1 - lr k of the parameters that terms act on, [1, ...] each; other parameters are as in the class above
    shift   lr f of the same parameters
    own     lr d, each client's own shift [c, ...], if there is one
    """

    kept: Tensors = field(default_factory=dict)
    shift: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)

    def product(self, name: str, a_coN: Tensor, b_cNK: Tensor, samples: int) -> None:
        self._pull(name)
        super().product(name, a_coN, b_cNK, samples)

    def total(self, name: str, gradient: Tensor) -> None:
        self._pull(name)
        super().total(name, gradient)

    def _pull(self, name: str) -> None:
        if name in self.kept:
            torch.addcmul(self.shift[name], self.targets[name], self.kept[name], out=self.targets[name])
        if name in self.own:
            self.targets[name].add_(self.own[name])


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
