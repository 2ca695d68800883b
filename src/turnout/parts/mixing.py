"""The weights each client of a cohort starts from: the shared parameters, or its own mix of models (FedAMP).

A mixing runs on the server, which keeps its state.

Shape letters: C clients of the cohort, R replies, S slots (clients ever seen), I any clients, P shared parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.machine.profiling import staged
from turnout.parts.substitution.base import find_slots, forget_rows, keep_rows, no_rows
from turnout.parts.updates import Applied
from turnout.types import State

BLOCK = 1 << 14  # columns whose distances are summed together, to avoid a second copy of all models


class Mixing(Protocol):
    """The weights clients start from.

    `observe` and `forget` modify the state in place; do not reuse it. The state of `begin` is not modified.
    """

    @property
    def personal(self) -> bool:
        """Whether clients have models of their own."""
        return False

    def begin(self, clients: int, width: int) -> State:
        """The state before the first round."""
        return {}

    def memory(self, clients: int, width: int) -> int:
        """Bytes of the state once that many clients have replied."""
        return 0

    @abstractmethod
    def starts(self, state: State, client_C: Tensor, shared_P: Tensor) -> Tensor | None:
        """The weights each of these clients starts from [C, P]; None: all from the shared parameters."""

    def own(self, state: State, client_C: Tensor, shared_P: Tensor) -> Tensor:
        """The model each client predicts with [C, P]."""
        return shared_P.expand(len(client_C), -1)

    def observe(self, state: State, applied: Applied) -> State:
        """Learn from the replies."""
        return state

    def forget(self, state: State, client_I: Tensor) -> State:
        """These clients have left for good."""
        return state


@dataclass(frozen=True)
class SharedStart(Mixing):
    """All clients start from the shared parameters."""

    personal: ClassVar[bool] = False

    def starts(self, state: State, client_C: Tensor, shared_P: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class FedAMP(Mixing):
    """FedAMP (Huang et al., 2021): client i starts from its cloud model, a mix of all clients' last models w_j,

        u_i = Σ_{j≠i} ξ_ij w_j + ξ_ii w_i,    ξ_ij = α exp(-|w_i - w_j|² / σ) / σ,    ξ_ii = 1 - Σ_{j≠i} ξ_ij

    and stays near it: list `Proximal(mu = λ / α)` among the terms. Where the others would weigh more than 1 together,
    they are scaled down to 1. `alpha` is α, `sigma` σ: `alpha` = 0 is training alone; a large `sigma` with
    `alpha` = σ / N is FedAvg among N.

    The server keeps the last model of every client that has replied (4 P bytes each) and mixes them for each of the C
    clients it asks: about 4 C S P operations for S known ones. An absent client's last model still counts for others. A
    client never seen starts from the shared parameters. These follow all updates as usual, but FedAMP is measured by
    `personal_accuracy`, that of the w_i.

    >>> attention = FedAMP(alpha=2.0, sigma=4.0)
    >>> attention.weights(torch.tensor([[0.0, 4.0]]), torch.tensor([0]))  # 2 exp(-1) / 4 for the other
    tensor([[0.8161, 0.1839]])
    """

    alpha: float = 1.0
    sigma: float = 10.0

    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self, alpha="[0, inf)", sigma="(0, inf)")

    def begin(self, clients: int, width: int) -> State:
        return no_rows(clients, width)

    def memory(self, clients: int, width: int) -> int:
        return clients * width * 4

    def weights(self, distance_CS: Tensor, own_C: Tensor) -> Tensor:
        """ξ from squared distances; `own_C` is each client's own slot, and slots at infinity weigh nothing."""
        other_CS = self.alpha * torch.exp(-distance_CS / self.sigma) / self.sigma
        other_CS = other_CS.scatter(1, own_C[:, None], 0.0)
        other_CS = other_CS / other_CS.sum(1, keepdim=True).clamp(min=1.0)
        return other_CS.scatter(1, own_C[:, None], 1 - other_CS.sum(1, keepdim=True))

    @staged("mixing")
    def starts(self, state: State, client_C: Tensor, shared_P: Tensor) -> Tensor | None:
        slot_C = find_slots(state["client"], client_C)
        known_C = slot_C >= 0
        start_CP = shared_P.expand(len(client_C), -1).clone()
        if bool(known_C.any()):
            rows_SP, slot_c = state["rows"].to(shared_P), slot_C[known_C]
            distance_cS = distances(rows_SP, slot_c, shared_P)
            distance_cS[:, state["client"] < 0] = torch.inf
            xi_cS = self.weights(distance_cS, slot_c)
            start_CP[known_C.to(start_CP.device)] = (xi_cS.to(rows_SP) @ rows_SP).to(start_CP)
        return start_CP

    def own(self, state: State, client_C: Tensor, shared_P: Tensor) -> Tensor:
        slot_C = find_slots(state["client"], client_C)
        own_CP = shared_P.expand(len(client_C), -1).clone()
        own_CP[(slot_C >= 0).to(own_CP.device)] = state["rows"][slot_C[slot_C >= 0]].to(own_CP)
        return own_CP

    @staged("mixing")
    def observe(self, state: State, applied: Applied) -> State:
        return keep_rows(state, applied.client_R, applied.models())

    def forget(self, state: State, client_I: Tensor) -> State:
        return forget_rows(state, client_I)


def distances(rows_SP: Tensor, slot_C: Tensor, near_P: Tensor) -> Tensor:
    """|w_i - w_j|² of some rows to all [C, S], on the CPU in float64.

    By inner products, which are fast, of differences from a point near all models: otherwise their common part would
    swamp the distances in rounding.
    """
    product_CS = torch.zeros(len(slot_C), len(rows_SP), dtype=torch.float64)
    square_S = torch.zeros(len(rows_SP), dtype=torch.float64)
    for start in range(0, rows_SP.shape[1], BLOCK):
        apart_Sb = rows_SP[:, start : start + BLOCK] - near_P[start : start + BLOCK].to(rows_SP)
        product_CS += (apart_Sb[slot_C.to(apart_Sb.device)] @ apart_Sb.T).double().cpu()
        square_S += apart_Sb.square().sum(1).double().cpu()
    return (square_S[slot_C, None] + square_S - 2 * product_CS).clamp(min=0)


KINDS = {"common": SharedStart, "fedamp": FedAMP}
