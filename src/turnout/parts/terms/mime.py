"""MimeLite: the server's momentum in every local step.

Shape letters: c clients of a chunk, C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.parts.terms.base import At, LocalTerm
from turnout.parts.updates import Applied
from turnout.types import Extra, Tensors


@dataclass(frozen=True)
class MimeLite(LocalTerm):
    """MimeLite with momentum (Karimireddy et al., 2021): clients step along (1 - β) g + β m, m constant in a round;
    then m <- (1 - β) Σ_k p_k ∇F_k(w_start) / Σ_k p_k + β m over the clients that replied, each ∇F_k over all samples of
    the client, in evaluation mode. `beta` is β; 0 is FedAvg.

    Uploads ∇F_k(w_start) and downloads m: twice FedAvg's bytes, both ways. (Mime itself also corrects by the cohort's
    gradient at w_start, which takes a second exchange in every round.)

    >>> MimeLite(beta=0.75).transform_grad(torch.tensor([[4.0]]), None, {"m": torch.tensor([8.0])}, {})
    tensor([[7.]])
    """

    beta: float = 0.9
    name: str = "mime-lite"

    def __post_init__(self) -> None:
        check_settings(self, beta="[0, 1)")

    def server_state(self, start_P: Tensor) -> Tensors:
        return {"m": torch.zeros_like(start_P)}

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP.mul_(1 - self.beta).add_(server_state["m"], alpha=self.beta)

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        return {"gradient": at.full_gradient(at.start_cP.expand_as(at.x_cP))}, client_state

    def server_update(self, server_state: Tensors, upload: Tensors, applied: Applied) -> tuple[Tensors, Extra]:
        share_R = (applied.objective_share_R / applied.objective_share_R.sum()).to(server_state["m"])
        return {"m": self.beta * server_state["m"] + (1 - self.beta) * (share_R @ upload["gradient"])}, {}


KINDS = {"mime-lite": MimeLite}
