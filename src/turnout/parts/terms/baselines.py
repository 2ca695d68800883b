"""FedProx, MimeLite and APFL as terms.

Shape letters: c clients of a chunk, C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.parts.terms.base import At, FusedStep, LocalTerm, PersonalModel
from turnout.parts.updates import Applied
from turnout.types import Extra, Tensors


@dataclass(frozen=True)
class Proximal(LocalTerm, FusedStep):
    """FedProx: the local loss gains μ/2 ‖w - w_start‖², so the gradient gains μ (w - w_start); `mu` is μ.

    >>> at = At(torch.tensor([[3.0]]), torch.tensor([[1.0]]), 0.1, 0, torch.ones(1), torch.ones(1), *[None] * 3)
    >>> Proximal(mu=0.5).transform_grad(torch.zeros(1, 1), at, {}, {})
    tensor([[1.]])
    """

    cuda_graph_safe: ClassVar[bool] = True

    mu: float = 0.2
    name: str = "proximal"

    def __post_init__(self) -> None:
        check_settings(self, mu="[0, inf)")

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP.add_(at.x_cP - at.start_cP, alpha=self.mu)

    def as_quadratic(self, start_cP: Tensor, server_state: Tensors) -> tuple[Tensor, Tensor] | None:
        return (torch.full_like(start_cP[0], self.mu), self.mu * start_cP[0]) if len(start_cP) == 1 else None


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

    def server_state(self, initial_P: Tensor) -> Tensors:
        return {"m": torch.zeros_like(initial_P)}

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP.mul_(1 - self.beta).add_(server_state["m"], alpha=self.beta)

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        return {"gradient": at.full_gradient(at.start_cP.expand_as(at.x_cP))}, client_state

    def server_update(self, server_state: Tensors, upload: Tensors, applied: Applied) -> tuple[Tensors, Extra]:
        share_R = (applied.objective_share_R / applied.objective_share_R.sum()).to(server_state["m"])
        return {"m": self.beta * server_state["m"] + (1 - self.beta) * (share_R @ upload["gradient"])}, {}


@dataclass(frozen=True)
class APFL(LocalTerm, PersonalModel, FusedStep):
    """APFL (Deng, Kamani, Mahdavi, 2020). The local model w_k is trained as usual; on the same mini-batches,

        v̄ = α_k v_k + (1 - α_k) w_k        what the client predicts with
        v_k <- v_k - η ∇_v f(v̄) = v_k - η α_k ∇f(v̄)
        α_k <- clip(α_k - η (<v_k - w_k, α_k ∇f(v̄) + (1 - α_k) ∇f(w_k)> + 0.02 α_k), 0, 1)

    v_k starts from the weights of a client's first download and is never sent, like α_k: the bytes are FedAvg's. v_k is
    stepped by plain SGD at the round's rate, whatever the local optimizer; personal parameters exist once and are
    trained with w_k; BatchNorm statistics are w_k's.

    alpha     initial α_k, the share of a client's own model
    adaptive  update α_k at the first local step of each round, as in the authors' FedTorch
    """

    cuda_graph_safe: ClassVar[bool] = True

    alpha: float = 0.5
    adaptive: bool = True
    name: str = "apfl"

    def __post_init__(self) -> None:
        check_settings(self, alpha="[0, 1]")

    def client_state(self, initial_P: Tensor) -> Tensors:
        alpha = initial_P.new_full((1,), self.alpha)
        return {"v": torch.zeros_like(initial_P), "alpha": alpha, "begun": torch.zeros(1)}

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        if at.step == 0:
            client_state["v"].copy_(torch.where(client_state["begun"] > 0, client_state["v"], at.x_cP))
            client_state["begun"].fill_(1.0)
        v_cP, alpha_c1 = client_state["v"], client_state["alpha"]
        at_v_cP = at.gradient(self.own(at.x_cP, client_state))
        apart_cP = v_cP - at.x_cP if self.adaptive and at.step == 0 else None
        v_cP.sub_(at_v_cP * (at.lr * alpha_c1))
        if apart_cP is not None:
            slope_cP = alpha_c1 * at_v_cP + (1 - alpha_c1) * grad_cP
            slope_c1 = (apart_cP * slope_cP).sum(1, keepdim=True) + 0.02 * alpha_c1
            alpha_c1.sub_(at.lr * slope_c1).clamp_(0, 1)
        return grad_cP

    def own(self, x_cP: Tensor, client_state: Tensors) -> Tensor:
        mixed_cP = torch.lerp(x_cP, client_state["v"].to(x_cP), client_state["alpha"].to(x_cP))
        return torch.where(client_state["begun"] > 0, mixed_cP, x_cP)


KINDS = {"proximal": Proximal, "fedprox": Proximal, "mime-lite": MimeLite, "apfl": APFL}
