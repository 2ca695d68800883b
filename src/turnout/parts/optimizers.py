"""Local optimizers: SGD, and Adam whose moments may be federated (paper 004), also with weight decay (AdamW).

Code written for one client's row works for a chunk of rows.

Shape letters: c clients of a chunk, C of a cohort, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.types import Tensors

MOMENTS = ("auto", "federated", "local", "fresh")


class Optimizer(Protocol):
    """A local optimizer: its slots are matrices like the parameters, zero at first, updated in place."""

    @property
    def lr(self) -> float: ...

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state matrices it needs besides the parameters."""

    @property
    def moments(self) -> str:
        """What happens to the slots after a round: "fresh" (zero in the next one), "local" (kept by the client) or
        "federated" (averaged with the weights; personal columns are kept by the client); "auto" is resolved before
        round 0."""

    @property
    def carries_count(self) -> bool:
        """Whether the number of steps is carried from round to round, like the moments."""

    @property
    def linear(self) -> bool:
        """Whether the steps are sums of the gradients, so that their mean follows from a client's path."""

    def step(self, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: float) -> None:
        """One step in place; `count_c` is the number of steps made, this one included."""

    def progress(self, steps_C: Tensor) -> Tensor:
        """Length of that many steps, in gradients: FedNova's normaliser a_k (plain SGD: the number of steps)."""


@dataclass(frozen=True)
class SGD:
    """x <- x - lr g, with `momentum` and `weight_decay` as options.

    >>> SGD(lr=0.1, momentum=0.5).progress(torch.tensor([0, 1, 2]))
    tensor([0.0000, 1.0000, 2.5000], dtype=torch.float64)
    """

    linear: ClassVar[bool] = True
    cuda_graph_safe: ClassVar[bool] = True  # a step depends on tensors alone, so a GPU may record it once and repeat it

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self, lr="(0, inf)", momentum="[0, 1)", weight_decay="[0, inf)")

    moments: ClassVar[str] = "fresh"
    carries_count: ClassVar[bool] = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def step(self, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: float) -> None:
        if self.weight_decay:
            grad_cP.add_(x_cP, alpha=self.weight_decay)
        if self.momentum:
            grad_cP = slots["momentum"].mul_(self.momentum).add_(grad_cP)
        if isinstance(lr, Tensor):  # in a captured step
            x_cP.addcmul_(grad_cP, lr, value=-1)
        else:
            x_cP.add_(grad_cP, alpha=-lr)

    def progress(self, steps_C: Tensor) -> Tensor:
        """With momentum ρ the s gradients' coefficients sum to (s - ρ (1 - ρ^s) / (1 - ρ)) / (1 - ρ)."""
        steps, rho = steps_C.to(torch.float64), self.momentum
        return steps if not rho else (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


@dataclass(frozen=True)
class Adam:
    """n <- n + 1; m <- β1 m + (1 - β1) g; v <- β2 v + (1 - β2) g²; w <- w - α m̂ / (√v̂ + ε)

    with m̂ = m / (1 - β1^n) and v̂ = v / (1 - β2^n). Defaults: paper 004's α, β1 and β2, the ε of Adam's paper.

    lr            α
    beta1, beta2  β1, β2
    eps           ε
    moments       between rounds: "federated" (averaged with the weights, three times the bytes; those of personal
                  columns stay with the client), "local" (kept by the client), "fresh" (zero); "auto" is federated, but
                  local where updates are compressed (a ternary v would divide by ε) or nothing is shared
    count         n: "carry" it from round to round with the moments, "reset" it every round, or "none", no correction

    >>> x, slots = torch.zeros(1, 2), {"first": torch.zeros(1, 2), "second": torch.zeros(1, 2)}
    >>> Adam(lr=0.1).step(x, torch.tensor([[5.0, -0.01]]), slots, torch.tensor([1]), lr=0.1)
    >>> x  # whatever the gradient's size, the first step is α long
    tensor([[-0.1000,  0.1000]])
    """

    linear: ClassVar[bool] = False
    cuda_graph_safe: ClassVar[bool] = True

    lr: float = 0.01
    beta1: float = 0.99
    beta2: float = 0.9999
    eps: float = 1e-8
    moments: str = "auto"
    count: str = "carry"

    def __post_init__(self) -> None:
        check_settings(self, lr="(0, inf)", beta1="[0, 1)", beta2="[0, 1)", eps="(0, inf)")
        check_settings(self, moments=MOMENTS, count=("carry", "reset", "none"))

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
        # The gradient is no longer needed, so its memory takes the denominator.
        r_c, small_c = self.factors(count_c, lr)
        denominator_cP = torch.sqrt(v_cP, out=grad_cP).mul_(r_c.to(x_cP)[:, None]).add_(small_c.to(x_cP)[:, None])
        x_cP.addcdiv_(m_cP, denominator_cP, value=-1)

    def factors(self, count_c: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """α/(1 - β1^n) · m / (√v / √(1 - β2^n) + ε) = m / (√v · r + s): r and s of each client."""
        count_c = count_c.to(torch.float64)
        if self.count == "none":
            q_c, root_c = torch.ones_like(count_c) / lr, torch.ones_like(count_c)
        else:
            q_c, root_c = (1 - self.beta1**count_c) / lr, (1 - self.beta2**count_c).sqrt()
        return q_c / root_c, q_c * self.eps

    def progress(self, steps_C: Tensor) -> Tensor:
        """An Adam step is about α long for any gradient, so it counts as one."""
        return steps_C.to(torch.float64)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay beside the gradient (Loshchilov and Hutter, 2019): w <- (1 - α λ) w before each step.

    Defaults are torch's.

    lr            α
    beta1, beta2  β1, β2
    eps           ε
    moments       between rounds, as in `Adam`
    count         n, as in `Adam`
    weight_decay  λ

    >>> x, slots = torch.ones(1, 1), {"first": torch.zeros(1, 1), "second": torch.zeros(1, 1)}
    >>> AdamW(lr=0.1, weight_decay=0.5).step(x, torch.tensor([[3.0]]), slots, torch.tensor([1]), lr=0.1)
    >>> x  # 1 - 0.1 · 0.5, then a step of 0.1
    tensor([[0.8500]])
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, weight_decay="[0, inf)")

    def step(self, x_cP: Tensor, grad_cP: Tensor, slots: Tensors, count_c: Tensor, lr: float) -> None:
        x_cP.mul_(1 - lr * self.weight_decay)
        super().step(x_cP, grad_cP, slots, count_c, lr)


KINDS = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
