"""Convolutions of many clients at once, each with its own weights, for any module under `vmap`.

On a GPU by the Triton kernels of gpu/convolution.py, which gather patches as they multiply; elsewhere as torch's
convolution of many groups, the form the kernels are compared with.

Shape letters: c clients, B batch, i input and o output channels, h, w height and width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnout.engine.stacked import Stacked

aten: Any = torch.ops.aten
Pair = tuple[int, int]


class Convolution(Stacked):
    """y [B, o, h', w'] of x [B, i, h, w], W [o, i, kh, kw] and b [o]; with one more dimension in front, of many."""

    dims = 4

    @staticmethod
    def forward(x: Tensor, W: Tensor, b: Tensor, stride: Pair, padding: Pair) -> Tensor:
        if x.dim() == 4:
            return aten.conv2d(x, W, b, stride, padding)
        if _kernels(x):
            from turnout.engine.gpu.convolution import SAMPLES, convolve

            return convolve(x.transpose(1, 2), W, b, padding, stride, order=SAMPLES).transpose(1, 2)
        grouped = aten.conv2d(_beside(x), W.flatten(0, 1), b.flatten(), stride, padding, (1, 1), len(x))
        return _apart(grouped, len(x))

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


class Linear(Stacked):
    """The gradients of a convolution are linear maps that nobody differentiates again."""

    dims = 4

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[None, ...]:
        return (None,) * 5


class InputGradient(Linear):
    """dx [B, i, h, w] from d [B, o, h', w'] and W."""

    @staticmethod
    def forward(d: Tensor, W: Tensor, stride: Pair, padding: Pair, size: Pair) -> Tensor:
        if d.dim() == 4:
            return InputGradient.forward(d[None], W[None], stride, padding, size)[0]
        if _kernels(d):
            from turnout.engine.gpu.convolution import SAMPLES, input_gradient

            return input_gradient(d.transpose(1, 2), W, padding, size, stride, order=SAMPLES).transpose(1, 2)
        clients, B, i = len(d), d.shape[1], W.shape[2]
        x = d.new_empty(B, clients * i, *size)
        return _apart(_backward(d, x, W, stride, padding, (True, False))[0], clients)


class WeightGradient(Linear):
    """dW [o, i, kh, kw] from x and d."""

    @staticmethod
    def forward(x: Tensor, d: Tensor, stride: Pair, padding: Pair, kernel: Pair) -> Tensor:
        if x.dim() == 4:
            return WeightGradient.forward(x[None], d[None], stride, padding, kernel)[0]
        clients, i, o = len(x), x.shape[2], d.shape[2]
        if _kernels(x):
            from turnout.engine.gpu.convolution import weight_gradient

            found = weight_gradient(x.transpose(1, 2), d.transpose(1, 2), kernel, padding, False, stride)
            return found.view(clients, o, i, *kernel)
        W = x.new_empty(clients, o, i, *kernel)
        return _backward(d, _beside(x), W, stride, padding, (False, True))[1].view_as(W)


def _backward(d: Tensor, x: Tensor, W: Tensor, stride: Pair, padding: Pair, wanted: tuple[bool, bool]) -> Any:
    """Torch's own gradients of a convolution of as many groups as there are clients."""
    given = (None, stride, padding, (1, 1), False, (0, 0), len(d), (*wanted, False))
    return aten.convolution_backward(_beside(d), x, W.flatten(0, 1), *given)


def _beside(x: Tensor) -> Tensor:
    """[c, B, i, h, w] -> [B, c i, h, w]"""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: Tensor, clients: int) -> Tensor:
    """[B, c i, h, w] -> [c, B, i, h, w]"""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def _kernels(x: Tensor) -> bool:
    if not x.is_cuda:
        return False
    from turnout.engine.gpu.layers import supports  # imports Triton, which takes a while

    return supports(x)


def conv2d(
    x: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """`torch.conv2d`; NotImplemented where its own is as good or the only one."""
    plain = x.is_cuda and x.dtype == torch.float32 and x.dim() == 4 and groups == 1 and _pair(dilation) == (1, 1)
    if not plain or isinstance(padding, str):
        return NotImplemented
    b = torch.zeros_like(W[:, 0, 0, 0]) if bias is None else bias
    return Convolution.apply(x, W, b, _pair(stride), _pair(padding))


def _pair(value: Any) -> Pair:
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])
