"""Server steps: the weighted sum applied as it is, or by Adam, Yogi or Adagrad (Reddi et al., 2021).

Shape letters: P shared parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.optimizers import check_adam
from turnout.parts.updates import Updates
from turnout.types import State


class ServerStep(Protocol):
    """How the server applies the aggregated update."""

    def begin(self, width: int) -> State:
        """The state before the first round."""

    def step(self, update_P: Tensor, state: State, updates: Updates) -> tuple[Tensor, State]:
        """The change to apply to the shared parameters `updates.start_P`; `updates` are those that were used, for a
        method that needs more than their sum. The state that is passed in is not modified."""


@dataclass(frozen=True)
class ServerSGD:
    """w <- w + lr · Σ weight_c update_c; `lr` is the server's learning rate."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise UserError(f"the server's learning rate must be above 0, not {self.lr}: set algorithm.server.lr")

    def begin(self, width: int) -> State:
        return {}

    def step(self, update_P: Tensor, state: State, updates: Updates) -> tuple[Tensor, State]:
        return update_P * self.lr, state


@dataclass(frozen=True)
class Adaptive(ABC):
    """The common part of the three: Δ is the weighted sum of updates, used as a gradient.

    m <- β1 m + (1 - β1) Δ; v by `second`, from τ² on; w <- w + η m / (√v + τ). No bias correction, as published.

    lr            η
    beta1, beta2  β1, β2
    tau           τ
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check_adam("algorithm.server", self.lr, self.beta1, self.beta2, self.tau)

    def begin(self, width: int) -> State:
        return {"first": torch.zeros(width), "second": torch.full((width,), self.tau**2)}

    def step(self, update_P: Tensor, state: State, updates: Updates) -> tuple[Tensor, State]:
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
    >>> step.step(torch.tensor([4.0]), step.begin(1), None)[0]  # 4 / (√16 + 0.001)
    tensor([0.9998])
    """

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return self.beta2 * v_P + (1 - self.beta2) * square_P


@dataclass(frozen=True)
class ServerYogi(Adaptive):
    """v <- v - (1 - β2) Δ² sign(v - Δ²): v grows like Adam's and shrinks slowly (FedYogi)."""

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return v_P - (1 - self.beta2) * square_P * torch.sign(v_P - square_P)


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """v <- v + Δ² (FedAdagrad; no momentum by default)."""

    lr: float = 0.1
    beta1: float = 0.0

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return v_P + square_P


KINDS = {
    "apply": ServerSGD,
    "server-adam": ServerAdam,
    "server-yogi": ServerYogi,
    "server-adagrad": ServerAdagrad,
}
