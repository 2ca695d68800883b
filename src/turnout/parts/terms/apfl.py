"""APFL: every client trains a second, personal model and predicts with a mixture of the two.

Shape letters: c clients of a chunk, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.parts.terms.base import At, LocalTerm, PersonalModel
from turnout.types import Tensors


@dataclass(frozen=True)
class APFL(LocalTerm, PersonalModel):
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

    alpha: float = 0.5
    adaptive: bool = True
    name: str = "apfl"

    def __post_init__(self) -> None:
        check_settings(self, alpha="[0, 1]")

    def client_state(self, start_P: Tensor) -> Tensors:
        return {"v": torch.zeros_like(start_P), "alpha": start_P.new_full((1,), self.alpha), "begun": torch.zeros(1)}

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        if at.step == 0:
            client_state["v"].copy_(torch.where(client_state["begun"] > 0, client_state["v"], at.x_cP))
            client_state["begun"].fill_(1.0)
        v_cP, alpha_c1 = client_state["v"], client_state["alpha"]
        at_v_cP = at.gradient(self.own(at.x_cP, client_state))
        apart_cP = v_cP - at.x_cP if self.adaptive and at.step == 0 else None
        v_cP.sub_(at_v_cP * alpha_c1, alpha=at.lr)
        if apart_cP is not None:
            slope_cP = alpha_c1 * at_v_cP + (1 - alpha_c1) * grad_cP
            slope_c1 = (apart_cP * slope_cP).sum(1, keepdim=True) + 0.02 * alpha_c1
            alpha_c1.sub_(slope_c1, alpha=at.lr).clamp_(0, 1)
        return grad_cP

    def own(self, x_cP: Tensor, client_state: Tensors) -> Tensor:
        mixed_cP = torch.lerp(x_cP, client_state["v"].to(x_cP), client_state["alpha"].to(x_cP))
        return torch.where(client_state["begun"] > 0, mixed_cP, x_cP)


KINDS = {"apfl": APFL}
