"""Stale (the baseline of paper 003): a client's last update stands in for it while it is missing.

Shape letters: C clients of the cohort, R replies, S slots (clients ever seen), P shared parameters, L clients left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.substitution.base import NoSubstitution, Substitutes, Updates, spread
from turnout.parts.substitution.slots import find_slots, forget_rows, keep_rows, no_rows
from turnout.types import State

FORMS = ("update", "weights")


@dataclass(frozen=True)
class Stale(NoSubstitution):
    """A missing client takes part with its last update; the share of one never seen is spread over the others.

    form  "update": its last update (the paper); "weights": the weights it ended with (the authors' code), which pull
          the model back to them
    """

    lends: ClassVar[bool] = True
    adds_rows: ClassVar[bool] = True

    form: str = "update"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise UserError(f"algorithm.substitution.form is 'update' or 'weights', not {self.form!r}")

    def begin(self, clients: int, width: int) -> State:
        return no_rows(clients, width)

    def memory(self, clients: int, width: int) -> int:
        return clients * width * 4

    def observe(self, state: State, arrived: Updates) -> State:
        row_RP = arrived.update_RP
        if arrived.scale_R is not None:
            row_RP = row_RP * arrived.scale_R[:, None].to(row_RP)
        if self.form == "weights":
            row_RP = row_RP + arrived.start_P
        return keep_rows(state, arrived.client_R, row_RP)

    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, arrived: Updates) -> Substitutes:
        client_C, rows_SP = arrived.turnout.client_C, state["rows"]
        slot_C = torch.where(counts_C, -1, find_slots(state["client"], client_C))
        old_C = slot_C >= 0
        weight_S = torch.zeros(len(rows_SP), dtype=share_C.dtype).index_copy(0, slot_C[old_C], share_C[old_C])
        position_S = torch.zeros(len(rows_SP), dtype=torch.int64)
        position_S[slot_C[old_C]] = old_C.nonzero().squeeze(1)
        borrowed_C = spread(share_C, counts_C, ~counts_C & ~old_C)
        start_P = arrived.start_P if self.form == "weights" else None
        extra: dict[str, float | str] = {"stale_rows": float(old_C.sum()), "stale_weight": float(weight_S.sum())}
        return Substitutes(borrowed_C, torch.where(old_C, client_C, -1), rows_SP, weight_S, position_S, start_P, extra)

    def forget(self, state: State, client_L: Tensor) -> State:
        return forget_rows(state, client_L)


KINDS = {"stale": Stale}
