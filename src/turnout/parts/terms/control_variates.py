"""Control variates as terms: SCAFFOLD, FedGATE and VRL-SGD. Each client remembers how its gradient differs from the
average, and subtracts that from its local gradients.

These invariants hold when clients are absent, finish part of their work, join late or leave:

    SCAFFOLD          c = Σ_k p_k c_k over the objective, c_k = 0 before a client's first reply
    FedGATE, VRL-SGD  Σ_k p_k δ_k = 0 (VRL-SGD: where the server applies the sum as it is)

Without them a method would converge to a point where Σ_k p_k ∇F_k is not 0.

Shape letters: c clients of a chunk, C replies, I clients that left, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.parts.aggregation import weighted_sum
from turnout.parts.terms.base import (
    At,
    Departures,
    FusedStep,
    LocalTerm,
    Notifies,
    ObjectiveChange,
    SelectiveDownload,
    TermTraits,
)
from turnout.parts.updates import Applied
from turnout.types import Extra, Tensors


@dataclass(frozen=True)
class Scaffold(LocalTerm, FusedStep, Departures, TermTraits):
    """SCAFFOLD (Karimireddy et al., 2020): local gradient g - c_k + c; c <- c + Σ_k p_k (c_k⁺ - c_k), where

        option 1:  c_k⁺ = ∇F_k(w_start), over all of the client's samples, in evaluation mode
        option 2:  c_k⁺ = c_k - c + (w_start - w_end) / (s η)

    With uniform shares p_k is the paper's 1/N. Uploads the change of c_k and downloads c: twice FedAvg's bytes, both
    ways. A client that leaves sends its c_k in its last message.

    >>> at = At(torch.tensor([[0.6]]), torch.tensor([[1.0]]), 0.1, 0, torch.tensor([2.0]), torch.ones(1), *[None] * 3)
    >>> Scaffold().finish(at, {"c": torch.tensor([0.5])}, {"c": torch.tensor([[0.25]])})[1]  # 0.25 - 0.5 + 0.4 / 0.2
    {'c': tensor([[1.7500]])}
    """

    cuda_graph_safe: ClassVar[bool] = True

    option: int = 2
    name: str = "scaffold"

    def __post_init__(self) -> None:
        check_settings(self, option=(1, 2))

    @property
    def requires_plain_sgd(self) -> bool:
        return self.option == 2

    def server_state(self, initial_P: Tensor) -> Tensors:
        return {"c": torch.zeros_like(initial_P)}

    def client_state(self, initial_P: Tensor) -> Tensors:
        return {"c": torch.zeros_like(initial_P)}

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP.sub_(client_state["c"]).add_(server_state["c"])

    def as_constant_shift(self, server_state: Tensors, client_state: Tensors) -> tuple[Tensor, Tensor | None] | None:
        return client_state["c"], server_state["c"]

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        if self.option == 1:
            new_cP = at.full_gradient(at.start_cP.expand_as(at.x_cP))
        else:
            new_cP = plus_mean_step(client_state["c"] - server_state["c"], at)
        return {"change": new_cP - client_state["c"]}, {"c": new_cP}

    def server_update(self, server_state: Tensors, upload: Tensors, applied: Applied) -> tuple[Tensors, Extra]:
        return {"c": server_state["c"] + applied.objective_share_R.to(server_state["c"]) @ upload["change"]}, {}

    def on_leave(self, client_state: Tensors) -> Tensors:
        return client_state

    def on_objective_change(self, server_state: Tensors, left: Tensors, change: ObjectiveChange) -> Tensors:
        return {"c": (server_state["c"] - sum_of_left(left, "c", change, server_state["c"])) * change.ratio}


@dataclass(frozen=True)
class VRLSGD(LocalTerm, FusedStep, Notifies, Departures, SelectiveDownload, TermTraits):
    """VRL-SGD (Liang et al., 2019): local gradient g - δ_k; then δ_k <- δ_k + (w_new - w_k_end) / (s η).

    w_new - w_k_end = (w_new - w_start) - D_k: the server's change less the client's own. Each is divided by its own
    number of steps; where all clients do the same work, both are s:

        δ_k <- δ_k - D_k / (s_k η) + Σ_j p_j D_j / (s_j η) / Σ_j p_j + (w_new - w_start - Σ_j a_j D_j) / (η Σ_j a_j s_j)

    over the clients that replied, a_j the weights of the sum; the last term is the effect of the server's own step or
    encoding, 0 for the plain one. One s for both halves would multiply the common part of all gradients by Σ_j a_j in
    every round (it decays where clients are missing) and by E / s (it explodes where work is scaled).

    The second half is sent to the clients after the round: P more numbers to download than FedAvg, none to upload. It
    cannot be derived from the next download, which contains the change of all rounds a client was away. When a client
    leaves, its δ_l goes to the clients that reply next, so that the δ still cancel.

    >>> at = At(torch.tensor([[0.6]]), torch.tensor([[1.0]]), 0.1, 0, torch.tensor([2.0]), torch.ones(1), *[None] * 3)
    >>> VRLSGD().finish(at, {}, {"delta": torch.tensor([[0.25]])})[1]  # 0.25 + 0.4 / 0.2; the rest by `on_notify`
    {'delta': tensor([[2.2500]])}
    """

    cuda_graph_safe: ClassVar[bool] = True
    sends: ClassVar[float] = 0
    requires_plain_sgd: ClassVar[bool] = True

    name: str = "vrl-sgd"

    def server_state(self, initial_P: Tensor) -> Tensors:
        return {"owed": torch.zeros_like(initial_P)}

    def broadcast(self, server_state: Tensors) -> Tensors:
        return {}

    def client_state(self, initial_P: Tensor) -> Tensors:
        return {"delta": torch.zeros_like(initial_P)}

    def transform_grad(self, grad_cP: Tensor, at: At, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP.sub_(client_state["delta"])

    def as_constant_shift(self, server_state: Tensors, client_state: Tensors) -> tuple[Tensor, Tensor | None] | None:
        return client_state["delta"], None

    def finish(self, at: At, server_state: Tensors, client_state: Tensors) -> tuple[Tensors, Tensors]:
        return {}, {"delta": plus_mean_step(client_state["delta"], at)}

    def _server_part(self, applied: Applied) -> Tensor | float:
        """The server's change besides the sum of the updates, per local step."""
        steps = float((applied.weight_R * applied.scaled_R * applied.turnout_R.progress_C).sum())  # of the whole sum
        return (applied.new_P - applied.start_P - applied.sum_P) / (steps * applied.lr)

    def notify(self, server_state: Tensors, applied: Applied) -> Tensors:
        """Σ_k p_k D_k / (s_k η) / Σ_k p_k, the mean local step of the clients that replied, whatever their work and
        weights; with `_server_part` and the debt to clients that left."""
        per_step_R = applied.scaled_R * applied.turnout_R.progress_C * applied.lr
        share_R = applied.objective_share_R
        mean_P = weighted_sum(applied.update_RP, share_R / share_R.sum() / per_step_R)
        return {"common": mean_P + self._server_part(applied) + server_state["owed"] / float(share_R.sum())}

    def on_notify(self, message: Tensors, client_state: Tensors) -> Tensors:
        return {"delta": client_state["delta"] + message["common"]}

    def server_update(self, server_state: Tensors, upload: Tensors, applied: Applied) -> tuple[Tensors, Extra]:
        return {"owed": torch.zeros_like(server_state["owed"])}, {}

    def on_leave(self, client_state: Tensors) -> Tensors:
        return client_state

    def on_objective_change(self, server_state: Tensors, left: Tensors, change: ObjectiveChange) -> Tensors:
        owed_P = server_state["owed"]
        return {"owed": (owed_P + sum_of_left(left, "delta", change, owed_P)) * change.ratio}


@dataclass(frozen=True)
class FedGATE(VRLSGD):
    """FedGATE (Haddadpour et al., 2021): as VRL-SGD, but δ_k follows the updates that arrived, whatever the server does
    with their sum: with server rate 1 and nothing compressed on the way down, the two are the same."""

    name: str = "fedgate"

    def _server_part(self, applied: Applied) -> Tensor | float:
        return 0.0


def plus_mean_step(to_cP: Tensor, at: At) -> Tensor:
    """Add (w_start - w_end) / (s η): the mean of a client's local steps, as a gradient."""
    return torch.addcdiv(to_cP, at.start_cP - at.x_cP, at.steps_c[:, None] * at.lr)


def sum_of_left(left: Tensors, name: str, change: ObjectiveChange, like_P: Tensor) -> Tensor:
    """Σ_l p_l of the last messages of clients that left."""
    return change.part_I.to(like_P) @ left[name].to(like_P) if name in left else torch.zeros_like(like_P)


KINDS = {"scaffold": Scaffold, "vrl-sgd": VRLSGD, "fedgate": FedGATE}
