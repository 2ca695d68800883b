"""Operations that know the client dimension: convolution and attention of many clients at once, under `vmap`.

Each is an `autograd.Function` whose forward takes the tensors of one client, or of c clients with one more dimension in
front, and which `vmap` calls once with all clients' tensors. A convolution runs on the Triton kernels of
kernels/convolution.py, elsewhere by torch's own batching rule.

Shape letters: c clients, B batch, i input and o output channels, h, w height and width, n heads, T positions, d
features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from turnout.engine.kernels import convolution as kernels
from turnout.engine.kernels.layers import supports
from turnout.engine.layers import pair

aten: Any = torch.ops.aten
attend: Any = torch.nn.functional.scaled_dot_product_attention
Pair = tuple[int, int]


class Stacked(torch.autograd.Function):
    """The rule for `vmap`, shared by all operations of this kind."""

    dims: ClassVar[int]  # dimensions of the first tensor for one client

    @classmethod
    def vmap(cls, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        lead = next(a.dim() for a in args if isinstance(a, Tensor)) - cls.dims
        lead -= next(d is not None for a, d in zip(args, in_dims, strict=True) if isinstance(a, Tensor))
        given = list(args)
        for place, (value, dim) in enumerate(zip(args, in_dims, strict=True)):
            if isinstance(value, Tensor):
                given[place] = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        if lead:  # clients outside, samples inside: one flat dimension of both
            clients = next(a.shape[1] for a in given if isinstance(a, Tensor))
            given = [a.flatten(0, 1) if isinstance(a, Tensor) else a for a in given]
        found = cls.apply(*given)
        several = isinstance(found, tuple)
        outs = found if several else (found,)
        if lead:
            outs = tuple(o.unflatten(0, (info.batch_size, clients)) for o in outs)
        return (outs, (0,) * len(outs)) if several else (outs[0], 0)


class StackedGradient(Stacked):
    """The gradient of such an operation, which is never differentiated again."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.inputs = len(inputs)
        ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[None, ...]:
        return (None,) * ctx.inputs


class StackedConvolution(Stacked):
    """y [B, o, h', w'] of x [B, i, h, w], W [o, i, kh, kw] and b [o]; of c clients with one more dimension in front."""

    dims = 4

    @staticmethod
    def forward(x: Tensor, W: Tensor, b: Tensor, stride: Pair, padding: Pair) -> Tensor:
        if x.dim() == 4:
            return aten.conv2d(x, W, b, stride, padding)
        if supports(x):
            return kernels.convolve(x.transpose(1, 2), W, b, padding, stride, kernels.SAMPLES).transpose(1, 2)
        return vmap(lambda x, W, b: aten.conv2d(x, W, b, stride, padding))(x, W, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, W, _, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, W)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        x, W = ctx.saved_tensors
        given = (ctx.stride, ctx.padding)
        dx = InputGradient.apply(d, W, *given, (x.shape[-2], x.shape[-1])) if ctx.needs_input_grad[0] else None
        dW = WeightGradient.apply(x, d, *given, (W.shape[-2], W.shape[-1])) if ctx.needs_input_grad[1] else None
        return dx, dW, d.sum((0, 2, 3)), None, None


class InputGradient(StackedGradient):
    """dx [B, i, h, w] from d [B, o, h', w'] and W."""

    dims = 4

    @staticmethod
    def forward(d: Tensor, W: Tensor, stride: Pair, padding: Pair, size: Pair) -> Tensor:
        if d.dim() == 4:
            return InputGradient.forward(d[None], W[None], stride, padding, size)[0]
        if supports(d):
            found = kernels.input_gradient(d.transpose(1, 2), W, padding, size, stride, order=kernels.SAMPLES)
            return found.transpose(1, 2)
        x = d.new_empty(len(d), d.shape[1], W.shape[2], *size)
        return _torch_gradient(d, x, W, stride, padding, 0)


class WeightGradient(StackedGradient):
    """dW [o, i, kh, kw] from x and d."""

    dims = 4

    @staticmethod
    def forward(x: Tensor, d: Tensor, stride: Pair, padding: Pair, kernel: Pair) -> Tensor:
        if x.dim() == 4:
            return WeightGradient.forward(x[None], d[None], stride, padding, kernel)[0]
        clients, i, o = len(x), x.shape[2], d.shape[2]
        if supports(x):
            found = kernels.weight_gradient(x.transpose(1, 2), d.transpose(1, 2), kernel, padding, False, stride)
            return found.view(clients, o, i, *kernel)
        return _torch_gradient(d, x, x.new_empty(clients, o, i, *kernel), stride, padding, 1)


def _torch_gradient(d: Tensor, x: Tensor, W: Tensor, stride: Pair, padding: Pair, place: int) -> Tensor:
    """Torch's own gradient of each client's convolution: of the input (place 0) or of the weights (1)."""
    given = (None, stride, padding, (1, 1), False, (0, 0), 1, (place == 0, place == 1, False))
    return vmap(lambda d, x, W: aten.convolution_backward(d, x, W, *given)[place])(d, x, W)


def conv2d(
    x: Tensor, W: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """`torch.conv2d`; NotImplemented if torch's own is as good or the only one."""
    plain = x.is_cuda and x.dtype == torch.float32 and x.dim() == 4 and groups == 1 and pair(dilation) == (1, 1)
    if not plain or isinstance(padding, str):
        return NotImplemented
    b = torch.zeros_like(W[:, 0, 0, 0]) if bias is None else bias
    return StackedConvolution.apply(x, W, b, pair(stride), pair(padding))


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
        return (*AttentionGradient.apply(d, *ctx.saved_tensors, *ctx.options), None, None)


class AttentionGradient(StackedGradient):
    """The gradients of q, k and v, by torch's own kernels; the forward pass is computed again for them."""

    dims = 4

    @staticmethod
    def forward(d: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            flat = [value.detach().reshape(-1, *value.shape[-3:]).requires_grad_() for value in (q, k, v)]
            found = attend(*flat, is_causal=causal, scale=scale)
        grads = torch.autograd.grad(found, flat, d.reshape(found.shape))
        return tuple(grad.view(value.shape) for grad, value in zip(grads, (q, k, v), strict=True))


def attention(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Any:
    """`scaled_dot_product_attention`, with a mask or heads that share keys by plain products (under `vmap`, for which
    torch has no rule then); NotImplemented with dropout."""
    given = dict(zip(("attn_mask", "dropout_p", "is_causal"), options, strict=False)) | named
    mask, shared = given.get("attn_mask"), bool(given.get("enable_gqa"))
    if given.get("dropout_p") or q.dim() != 4 or (not shared and not q.shape[:2] == k.shape[:2] == v.shape[:2]):
        return NotImplemented
    if mask is not None or shared:
        if not torch._C._functorch.is_functorch_wrapped_tensor(q):
            return NotImplemented
        return masked_attention(q, k, v, mask, bool(given.get("is_causal", False)), given.get("scale"))
    return Attention.apply(q, k, v, bool(given.get("is_causal", False)), given.get("scale"))


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """softmax(scale q kᵀ) v over the keys that a query may see; 0 for a query that sees none, as torch has it."""
    if q.shape[1] != k.shape[1]:  # several heads share keys and values
        k, v = (value.repeat_interleave(q.shape[1] // value.shape[1], 1) for value in (k, v))
    score = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    seen = mask if mask is not None and mask.dtype == torch.bool else None
    if is_causal:
        seen = torch.ones(score.shape[-2:], dtype=torch.bool, device=q.device).tril()
    elif mask is not None and seen is None:
        score = score + mask
    if seen is None:
        return score.softmax(-1) @ v
    share = score.masked_fill(~seen, torch.finfo(score.dtype).min).softmax(-1)
    return (share * seen.any(-1, keepdim=True)) @ v
