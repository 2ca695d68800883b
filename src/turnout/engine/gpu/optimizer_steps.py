"""Adam's step as one Triton kernel: each number is read and written once, instead of in seven passes over all clients'
weights. What is computed is `parts.optimizers.Adam.step`, which also does every other case.

Shape letters: c clients of a chunk, P parameters.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnout.engine.gpu.triton_tools import installed, jit, pieces, tl
from turnout.parts.optimizers import Adam, Optimizer
from turnout.types import Tensors

BLOCK = 1024  # numbers per program
WARPS = 4


@jit
def _adam(
    x_ptr, g_ptr, m_ptr, v_ptr, scale_ptr, small_ptr, P, xs_c, gs_c, ms_c, vs_c, one_less_beta1, beta2, one_less_beta2,
    BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = p < P
    g = tl.load(g_ptr + c * gs_c + p, mask=real, other=0.0)
    m = tl.load(m_ptr + c * ms_c + p, mask=real, other=0.0)
    v = tl.load(v_ptr + c * vs_c + p, mask=real, other=0.0)
    m += (g - m) * one_less_beta1
    v = v * beta2 + g * g * one_less_beta2
    x = tl.load(x_ptr + c * xs_c + p, mask=real, other=0.0)
    x -= m / (tl.sqrt_rn(v) * tl.load(scale_ptr + c) + tl.load(small_ptr + c))
    tl.store(m_ptr + c * ms_c + p, m, mask=real)
    tl.store(v_ptr + c * vs_c + p, v, mask=real)
    tl.store(x_ptr + c * xs_c + p, x, mask=real)


def optimizer_step(
    optimizer: Optimizer, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: Any
) -> None:
    """One step of an optimizer in place; `lr` is a number, or a tensor where the step is captured."""
    if not _fits(optimizer, x_cP, grad_cP, slots):
        optimizer.step(x_cP, grad_cP, slots, count_c, lr)
        return
    assert isinstance(optimizer, Adam)
    scale_c, small_c = (value.to(x_cP) for value in optimizer.factors(count_c, lr))
    m_cP, v_cP, (c, P) = slots["first"], slots["second"], x_cP.shape
    strides = (value.stride(0) for value in (x_cP, grad_cP, m_cP, v_cP))
    _adam[pieces(P, BLOCK), c](
        x_cP, grad_cP, m_cP, v_cP, scale_c, small_c, P, *strides, 1 - optimizer.beta1, optimizer.beta2,
        1 - optimizer.beta2, BLOCK, num_warps=WARPS,
    )  # fmt: skip


def _fits(optimizer: Optimizer, x_cP: Tensor, grad_cP: Tensor, slots: Tensors) -> bool:
    rows = (x_cP, grad_cP, *slots.values())
    plain = type(optimizer) is Adam and x_cP.is_cuda and x_cP.device.index == torch.cuda.current_device()
    return plain and installed() and all(v.dtype == torch.float32 and v.stride(1) == 1 for v in rows)
