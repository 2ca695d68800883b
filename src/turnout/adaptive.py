"""Adaptive steps: Adam on the clients (paper 004), and Adam, Yogi or Adagrad on the server (Reddi et al.).

The name trap: paper 004 calls *distributed* Adam "FedAdam": clients run Adam, and the server averages both moments
with the weights. Its authors' later code calls that "FedAvg-Adam", and keeps "FedAdam" for Reddi et al.'s *server*
Adam: clients run SGD, and the server takes their mean update for a gradient. Here they are `Adam` and `ServerAdam`.

Shape letters: c clients of a chunk, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import Mistake, nearest
from turnout.types import State, Tensors

MOMENTS = ("auto", "federated", "local", "fresh")
COUNTS = ("carry", "reset", "none")


@dataclass(frozen=True)
class Adam:
    """n <- n + 1; m <- β1 m + (1 - β1) g; v <- β2 v + (1 - β2) g²; w <- w - α m̂ / (√v̂ + ε)

    with m̂ = m / (1 - β1^n) and v̂ = v / (1 - β2^n). Defaults: paper 004's α, β1 and β2, the ε of Adam's paper.

    moments  between rounds: "federated" (averaged with the weights, three times the bytes; personal columns keep
             theirs at home), "local" (kept by the client), "fresh" (zero again); "auto" is federated, but local where
             updates are compressed (a ternary v would divide by ε) or nothing is shared
    count    n: "carry" it from round to round with the moments, "reset" it every round, or "none", no correction

    >>> x, slots = torch.zeros(1, 2), {"first": torch.zeros(1, 2), "second": torch.zeros(1, 2)}
    >>> Adam(lr=0.1).step(x, torch.tensor([[5.0, -0.01]]), slots, torch.tensor([1]), lr=0.1)
    >>> x  # whatever the gradient's size, the first step is α long
    tensor([[-0.1000,  0.1000]])
    """

    linear: ClassVar[bool] = False

    lr: float = 0.01
    beta1: float = 0.99
    beta2: float = 0.9999
    eps: float = 1e-8
    moments: str = "auto"
    count: str = "carry"

    def __post_init__(self) -> None:
        _check("algorithm.local.optimizer", self.lr, self.beta1, self.beta2, self.eps)
        for name, options in (("moments", MOMENTS), ("count", COUNTS)):
            value = getattr(self, name)
            if value not in options:
                raise Mistake(f"algorithm.local.optimizer.{name} is {value!r}: {nearest(value, options)}")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first", "second")

    @property
    def carries_count(self) -> bool:
        return self.count == "carry"

    def step(self, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: float) -> None:
        m_cP, v_cP = slots["first"], slots["second"]
        m_cP.lerp_(grad_cP, 1 - self.beta1)
        v_cP.mul_(self.beta2).addcmul_(grad_cP, grad_cP, value=1 - self.beta2)
        # α/(1 - β1^n) · m / (√v / √(1 - β2^n) + ε) = m / (√v · r + ε · q), one number a client; the gradient is done
        # with, so its memory takes the denominator.
        q_c, root_c = self._corrections(count_c.to(torch.float64), lr)
        denominator_cP = torch.sqrt(v_cP, out=grad_cP).mul_((q_c / root_c).to(x_cP)[:, None])
        denominator_cP.add_((q_c * self.eps).to(x_cP)[:, None])
        x_cP.addcdiv_(m_cP, denominator_cP, value=-1)

    def _corrections(self, count_c: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """(1 - β1^n) / α and √(1 - β2^n), both without their correction where it is off."""
        if self.count == "none":
            return torch.full_like(count_c, 1 / lr), torch.ones_like(count_c)
        return (1 - self.beta1**count_c) / lr, (1 - self.beta2**count_c).sqrt()

    def progress(self, steps_C: Tensor) -> Tensor:
        """An Adam step is about α long whatever its gradient, so it counts as one."""
        return steps_C.to(torch.float64)


@dataclass(frozen=True)
class Adaptive(ABC):
    """What the server's three have in common: Δ is the weighted sum of updates, taken for a gradient.

    m <- β1 m + (1 - β1) Δ; v as each says, from τ²; w <- w + η m / (√v + τ). No bias correction, as published.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check("algorithm.server", self.lr, self.beta1, self.beta2, self.tau)

    def begin(self, width: int) -> State:
        return {"first": torch.zeros(width), "second": torch.full((width,), self.tau**2)}

    def step(self, update_P: Tensor, state: State) -> tuple[Tensor, State]:
        m_P = self.beta1 * state["first"] + (1 - self.beta1) * update_P
        v_P = self.second(state["second"], update_P.square())
        return self.lr * m_P / (v_P.sqrt() + self.tau), {"first": m_P, "second": v_P}

    @abstractmethod
    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        """The next v, given Δ²."""


@dataclass(frozen=True)
class ServerAdam(Adaptive):
    """v <- β2 v + (1 - β2) Δ² (FedAdam of Reddi et al.; not paper 004's, which is `Adam` on the clients).

    >>> step = ServerAdam(lr=1.0, beta1=0.0, beta2=0.0, tau=1e-3)
    >>> step.step(torch.tensor([4.0]), step.begin(1))[0]  # 4 / (√16 + 0.001)
    tensor([0.9998])
    """

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return self.beta2 * v_P + (1 - self.beta2) * square_P


@dataclass(frozen=True)
class ServerYogi(Adaptive):
    """v <- v - (1 - β2) Δ² sign(v - Δ²): v grows as Adam's does, and shrinks slowly (FedYogi)."""

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return v_P - (1 - self.beta2) * square_P * torch.sign(v_P - square_P)


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """v <- v + Δ² (FedAdagrad; no momentum by default)."""

    lr: float = 0.1
    beta1: float = 0.0

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return v_P + square_P


def _check(where: str, lr: float, beta1: float, beta2: float, small: float) -> None:
    if not lr > 0 or not small > 0:
        raise Mistake(f"{where}: the rate and the small number below the fraction are above 0, not {lr} and {small}")
    if not 0 <= beta1 < 1 or not 0 <= beta2 < 1:
        raise Mistake(f"{where}: beta1 and beta2 are in [0, 1), not {beta1} and {beta2}")
