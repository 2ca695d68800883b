"""Adam's step, SGD's with momentum, and SGD's with terms that are springs or drifts, each as one Triton kernel: every
number is read and written once, instead of in several passes over all clients' weights. The arithmetic is that of
`step` of `parts.optimizers`, and of the terms' `transform_grad` before it, which also do every other case.

Shape letters: c clients of a chunk, P parameters.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from turnout.engine.kernels.graphs import GraphCache
from turnout.machine.triton_tools import jit, pieces, takes, tl
from turnout.parts.optimizers import SGD, Adam, AdamW, Optimizer
from turnout.parts.terms.base import FusedStep, Term, as_quadratic
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


@jit
def _momentum(x_ptr, g_ptr, m_ptr, lr_ptr, P, xs_c, gs_c, ms_c, rho, decay, BLOCK: tl.constexpr):
    c = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + c * xs_c + p, mask=p < P, other=0.0)
    g = tl.load(g_ptr + c * gs_c + p, mask=p < P, other=0.0) + decay * x
    m = rho * tl.load(m_ptr + c * ms_c + p, mask=p < P, other=0.0) + g
    tl.store(m_ptr + c * ms_c + p, m, mask=p < P)
    tl.store(x_ptr + c * xs_c + p, x - tl.load(lr_ptr) * m, mask=p < P)


@jit
def _pulled_descent(
    x_ptr, g_ptr, own_ptr, stiff_ptr, pull_ptr, lr_ptr, P, shared, xs_c, gs_c, os_c, OWN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + c * xs_c + p, mask=p < P, other=0.0)
    g = tl.load(g_ptr + c * gs_c + p, mask=p < P, other=0.0)
    stiff = tl.load(stiff_ptr + p, mask=p < shared, other=0.0)
    pull = tl.load(pull_ptr + p, mask=p < shared, other=0.0)
    if OWN:
        g -= tl.load(own_ptr + c * os_c + p, mask=p < shared, other=0.0)
    tl.store(x_ptr + c * xs_c + p, x - tl.load(lr_ptr) * (g + (stiff * x - pull)), mask=p < P)


@dataclass(frozen=True)
class Pull:
    """The sum that terms add to a gradient, on the shared columns: k x - f - d.

    stiff_P   k
    pull_P    f
    own_cP    d, a row for each client
    """

    stiff_P: Tensor
    pull_P: Tensor
    own_cP: Tensor | None = None

    @classmethod
    def of(
        cls, terms: Sequence[Term], start_cP: Tensor, down: dict[str, Tensors], mine: dict[str, Tensors]
    ) -> Pull | None:
        """All terms together; None if one is neither a spring nor a drift, or two have rows of their own."""
        found = cls(torch.zeros_like(start_cP[0]), torch.zeros_like(start_cP[0]))
        for term in terms:
            sent, kept = down.get(term.name, {}), mine.get(term.name, {})
            spring = as_quadratic(term, start_cP, sent)
            drift = term.as_constant_shift(sent, kept) if isinstance(term, FusedStep) else None
            if spring is not None:
                found = cls(found.stiff_P + spring[0], found.pull_P + spring[1], found.own_cP)
            elif drift is not None and found.own_cP is None and drift[0].stride(1) == 1:
                pull_P = found.pull_P if drift[1] is None else found.pull_P - drift[1]
                found = cls(found.stiff_P, pull_P, drift[0])
            else:
                return None
        return found


@dataclass(frozen=True)
class Spring:
    """Plain SGD with such terms, on the shared columns: x <- kept x + shift + own - lr g.

    kept_1P    1 - lr k
    shift_1P   lr f
    own_cP     lr d, a row for each client
    """

    kept_1P: Tensor
    shift_1P: Tensor
    own_cP: Tensor | None = None

    @classmethod
    def of(cls, pull: Pull, lr: float, graphs: GraphCache) -> Spring:
        """1 - lr k, lr f and lr d, at the same addresses in every round."""
        kept_1P = graphs.hold("kept", pull.stiff_P.mul(-lr).add_(1)[None])
        shift_1P, own_cP = graphs.hold("shift", pull.pull_P.mul(lr)[None]), None
        if pull.own_cP is not None:
            own_cP = torch.mul(pull.own_cP, lr, out=graphs.hold("own", pull.own_cP, copy=False))
        return cls(kept_1P, shift_1P, own_cP)

    def first(self, clients: int) -> Spring:
        """The same for the first clients, which still have steps to do."""
        return self if self.own_cP is None else replace(self, own_cP=self.own_cP[:clients])

    def tensors(self) -> list[Tensor]:
        return [value for value in (self.kept_1P, self.shift_1P, self.own_cP) if value is not None]


def pulled_descent(x_cP: Tensor, grad_cP: Tensor, pull: Pull, lr: Any) -> None:
    """x <- x - lr (g + k x - f - d) in place."""
    stiff_P, pull_P, own_cP = pull.stiff_P, pull.pull_P, pull.own_cP
    own = x_cP if own_cP is None else own_cP
    lr, (c, P) = _rate(lr, x_cP), x_cP.shape
    _pulled_descent[pieces(P, BLOCK), c](
        x_cP, grad_cP, own, stiff_P, pull_P, lr, P, len(stiff_P), x_cP.stride(0), grad_cP.stride(0), own.stride(0),
        own_cP is not None, BLOCK, num_warps=WARPS,
    )  # fmt: skip


def pull_fits(optimizer: Optimizer, x_cP: Tensor, grad_cP: Tensor) -> bool:
    """Whether `pulled_descent` works here: plain SGD without weight decay, on a GPU."""
    plain = type(optimizer) is SGD and not optimizer.momentum and not optimizer.weight_decay
    return plain and takes(x_cP, grad_cP)


def optimizer_step(
    optimizer: Optimizer, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: Any
) -> None:
    """One step of an optimizer in place; `lr` is a number, or a tensor where the step is captured."""
    if type(optimizer) is SGD and optimizer.momentum and takes(x_cP, grad_cP, *slots.values()):
        momentum_step(optimizer, x_cP, grad_cP, slots["momentum"], lr)
    elif isinstance(optimizer, Adam) and type(optimizer) in (Adam, AdamW) and takes(x_cP, grad_cP, *slots.values()):
        if isinstance(optimizer, AdamW):
            x_cP.mul_(1 - lr * optimizer.weight_decay)
        scale_c, small_c = (value.to(x_cP) for value in optimizer.factors(count_c, lr))
        m_cP, v_cP, (c, P) = slots["first"], slots["second"], x_cP.shape
        strides = (value.stride(0) for value in (x_cP, grad_cP, m_cP, v_cP))
        _adam[pieces(P, BLOCK), c](
            x_cP, grad_cP, m_cP, v_cP, scale_c, small_c, P, *strides, 1 - optimizer.beta1, optimizer.beta2,
            1 - optimizer.beta2, BLOCK, num_warps=WARPS,
        )  # fmt: skip
    else:
        optimizer.step(x_cP, grad_cP, slots, count_c, lr)


def momentum_step(optimizer: SGD, x_cP: Tensor, grad_cP: Tensor, m_cP: Tensor, lr: Any) -> None:
    """m <- ρ m + g + decay x; x <- x - lr m in place."""
    strides, (c, P) = (value.stride(0) for value in (x_cP, grad_cP, m_cP)), x_cP.shape
    _momentum[pieces(P, BLOCK), c](
        x_cP, grad_cP, m_cP, _rate(lr, x_cP), P, *strides, optimizer.momentum, optimizer.weight_decay, BLOCK,
        num_warps=WARPS,
    )  # fmt: skip


def _rate(lr: Any, like: Tensor) -> Tensor:
    """A learning rate as a tensor, which it already is in a captured step."""
    return lr if isinstance(lr, Tensor) else torch.full((), lr, device=like.device, dtype=like.dtype)
