"""Attention of many clients at once: it has no weights, so clients are only more samples. Under `vmap` torch's own
backward pass would go through the clients one by one.

Shape letters: c clients, B batch, n heads, T positions, d features of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnout.engine.stacked import Stacked

attend: Any = torch.nn.functional.scaled_dot_product_attention


class Attention(Stacked):
    """softmax(q kᵀ s) v for [B, n, T, d], or [c, B, n, T, d]."""

    dims = 4

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
        flat = [value.reshape(-1, *value.shape[-3:]) for value in (q, k, v)]
        found = attend(*flat, is_causal=causal, scale=scale)
        return found.view(*q.shape[:-1], v.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.options = inputs[3:]

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        return (*AttentionBackward.apply(d, *ctx.saved_tensors, *ctx.options), None, None)


class AttentionBackward(Stacked):
    """The gradients of q, k and v, by torch's own kernels: what forward saves for them is computed again."""

    dims = 4

    @staticmethod
    def forward(d: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            flat = [value.detach().reshape(-1, *value.shape[-3:]).requires_grad_() for value in (q, k, v)]
            found = attend(*flat, is_causal=causal, scale=scale)
        grads = torch.autograd.grad(found, flat, d.reshape(found.shape))
        return tuple(grad.view(value.shape) for grad, value in zip(grads, (q, k, v), strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[None, ...]:
        return (None,) * 6


def attention(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Any:
    """`scaled_dot_product_attention`; NotImplemented with a mask, with dropout, or with heads that share keys."""
    names = ("attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, options, strict=False)) | named
    plain = given.get("attn_mask") is None and not given.get("dropout_p") and not given.get("enable_gqa")
    if not plain or q.dim() != 4 or not q.shape[:2] == k.shape[:2] == v.shape[:2]:
        return NotImplemented
    return Attention.apply(q, k, v, bool(given.get("is_causal", False)), given.get("scale"))
