"""BatchNorm written by hand for a chunk of clients: each client normalises by the statistics of its own batch.

Samples that pad a short batch do not count. Training updates the running statistics in place, in the clients' own
buffers; evaluation uses them and leaves them unchanged.

Shape letters: c clients of a chunk, B batch, i features or channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from turnout.engine.gradient_sinks import GradientSink, positions
from turnout.types import Tensors

REAL = "real samples"  # the batch's mask has this name among the weights; no parameter can have it


@dataclass(frozen=True)
class BatchNorm:
    """y = γ x̂ + β with x̂ = (x - E[x]) / √(Var[x] + ε), for [c, B, i] or images [c, i, B, h, w]."""

    name: str
    eps: float
    momentum: float
    training: bool = True

    @classmethod
    def of(cls, name: str, module: nn.Module) -> BatchNorm | None:
        """The hand-written form of a BatchNorm layer; None if it has no scale, statistics or fixed momentum."""
        if not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            return None
        if not module.affine or not module.track_running_stats or module.momentum is None:
            return None
        return cls(name, module.eps, module.momentum)

    def forward(self, x: Tensor, weights: Tensors) -> tuple[Tensor, Any]:
        over, shape = positions(x), _per_feature(x)
        real = _real(x, weights) if self.training else None
        if self.training:
            mean, var, samples = _statistics(x, over, real)
            self._update(mean, var, samples, weights)
        else:
            mean, var = (weights[f"{self.name}.running_{s}"].view(shape) for s in ("mean", "var"))
            samples = 1
        inverse = torch.rsqrt(var + self.eps)
        hat = (x - mean).mul_(inverse)
        gamma, beta = (weights[f"{self.name}.{w}"].view(shape) for w in ("weight", "bias"))
        return torch.addcmul(beta, hat, gamma), (hat, inverse, real, samples)

    def _update(self, mean: Tensor, var: Tensor, samples: int | Tensor, weights: Tensors) -> None:
        """Running statistics: μ <- (1 - ρ) μ + ρ E[x], and the same for σ² with the unbiased variance, as in torch."""
        unbiased = var * (samples / (samples - 1))
        kept = weights[f"{self.name}.running_mean"]
        kept.lerp_(mean.view_as(kept), self.momentum)
        weights[f"{self.name}.running_var"].lerp_(unbiased.view_as(kept), self.momentum)
        weights[f"{self.name}.num_batches_tracked"].add_(1)

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


def _real(x: Tensor, weights: Tensors) -> Tensor | None:
    """1 for real samples and 0 for padding, in a shape that broadcasts with x; None if no batch is padded."""
    if REAL not in weights:
        return None
    mask_cB = weights[REAL]
    return mask_cB.unsqueeze(2) if x.dim() == 3 else mask_cB.view(x.shape[0], 1, x.shape[2], 1, 1)


def _statistics(x: Tensor, over: tuple[int, ...], real: Tensor | None) -> tuple[Tensor, Tensor, int | Tensor]:
    """Mean and variance over each client's real samples, and their number (times the positions of an image)."""
    if real is None:
        var, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        return mean, var, x.numel() // mean.numel()
    samples = real.sum(over, keepdim=True) * (x[0, 0, 0].numel() if x.dim() == 5 else 1)
    mean = (x * real).sum(over, keepdim=True) / samples
    return mean, ((x - mean).square_() * real).sum(over, keepdim=True) / samples, samples


def _per_feature(x: Tensor) -> tuple[int, ...]:
    """The shape of one number per client and feature, to broadcast with x."""
    return (x.shape[0], 1, x.shape[2]) if x.dim() == 3 else (x.shape[0], x.shape[1], 1, 1, 1)
