"""Server steps: the weighted sum applied as it is, or by Adam, Yogi or Adagrad (Reddi et al., 2021).

Shape letters: P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import UserError, check_settings
from turnout.parts.updates import Updates
from turnout.types import State


class ServerStep(Protocol):
    """How the server applies the aggregated update."""

    def begin(self, width: int) -> State:
        """The state before the first round; `width` is the number P of shared parameters."""

    def step(self, update_P: Tensor, state: State, updates: Updates) -> tuple[Tensor, State]:
        """(change_P, state): the change to add to the shared parameters `updates.start_P`, and the next state.

        `update_P` is the weighted sum of the updates (trained - start, so it points downhill); `updates` are those that
        were used, for a method that needs more than their sum. The state that is passed in is not modified.
        """


def stepped(step: ServerStep, update_P: Tensor, state: State, updates: Updates) -> tuple[Tensor, State]:
    """The results of a server step, checked to be two."""
    found: object = step.step(update_P, state, updates)
    if isinstance(found, tuple) and len(found) == 2:
        return found
    raise UserError(f"{type(step).__name__}.step returns (change_P, state), not a {type(found).__name__}")


@dataclass(frozen=True)
class ServerSGD:
    """w <- w + lr · Σ weight_c update_c; `lr` is the server's learning rate."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self, lr="(0, inf)")

    def begin(self, width: int) -> State:
        return {}

    def step(self, update_P: Tensor, state: State, updates: Updates) -> tuple[Tensor, State]:
        return update_P * self.lr, state


@dataclass(frozen=True)
class ServerAdam:
    """m <- β1 m + (1 - β1) Δ; v <- β2 v + (1 - β2) Δ², from τ² on; w <- w + η m / (√v + τ), where Δ is the weighted sum
    of updates. No bias correction, as published (FedAdam; not paper 004's, which is `Adam` on the clients).

    lr            η
    beta1, beta2  β1, β2
    tau           τ

    >>> step = ServerAdam(lr=1.0, beta1=0.0, beta2=0.0, tau=1e-3)
    >>> step.step(torch.tensor([4.0]), step.begin(1), None)[0]  # 4 / (√16 + 0.001)
    tensor([0.9998])
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check_settings(self, lr="(0, inf)", beta1="[0, 1)", beta2="[0, 1)", tau="(0, inf)")

    def begin(self, width: int) -> State:
        return {"first": torch.zeros(width), "second": torch.full((width,), self.tau**2)}

    def step(self, update_P: Tensor, state: State, updates: Updates) -> tuple[Tensor, State]:
        m_P = self.beta1 * state["first"] + (1 - self.beta1) * update_P
        v_P = self.second(state["second"], update_P.square())
        return self.lr * m_P / (v_P.sqrt() + self.tau), {"first": m_P, "second": v_P}

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        """The next v, given Δ²."""
        return self.beta2 * v_P + (1 - self.beta2) * square_P


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """`ServerAdam` with v <- v - (1 - β2) Δ² sign(v - Δ²): v shrinks slowly (FedYogi).

    lr            η
    beta1, beta2  β1, β2
    tau           τ
    """

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return v_P - (1 - self.beta2) * square_P * torch.sign(v_P - square_P)


@dataclass(frozen=True)
class ServerAdagrad(ServerAdam):
    """`ServerAdam` with v <- v + Δ² (FedAdagrad; no momentum by default).

    lr     η
    beta1  β1
    beta2  not used
    tau    τ
    """

    lr: float = 0.1
    beta1: float = 0.0

    def second(self, v_P: Tensor, square_P: Tensor) -> Tensor:
        return v_P + square_P


KINDS = {"apply": ServerSGD, "server-adam": ServerAdam, "server-yogi": ServerYogi, "server-adagrad": ServerAdagrad}
