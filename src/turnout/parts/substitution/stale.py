"""Stale (the baseline of paper 003): a client's last update stands in for it while it is missing.

Shape letters: C clients of the cohort, R replies, K or S slots (clients ever seen), P shared parameters, L clients that
left, I any clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.parts.substitution.base import NoSubstitution, Substitutes, Updates, spread
from turnout.types import State


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
        check_settings(self, form=("update", "weights"))

    def begin(self, clients: int, width: int) -> State:
        return no_rows(clients, width)

    def memory(self, clients: int, width: int) -> int:
        return clients * width * 4

    def observe(self, state: State, updates: Updates) -> State:
        row_RP = updates.update_RP
        if updates.scale_R is not None:
            row_RP = row_RP * updates.scale_R[:, None].to(row_RP)
        if self.form == "weights":
            row_RP = row_RP + updates.start_P
        return keep_rows(state, updates.client_R, row_RP)

    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, updates: Updates) -> Substitutes:
        client_C, rows_SP = updates.turnout.client_C, state["rows"]
        slot_C = torch.where(counts_C, -1, find_slots(state["client"], client_C))
        old_C = slot_C >= 0
        weight_S = torch.zeros(len(rows_SP), dtype=share_C.dtype).index_copy(0, slot_C[old_C], share_C[old_C])
        position_S = torch.zeros(len(rows_SP), dtype=torch.int64)
        position_S[slot_C[old_C]] = old_C.nonzero().squeeze(1)
        borrowed_C = spread(share_C, counts_C, ~counts_C & ~old_C)
        start_P = updates.start_P if self.form == "weights" else None
        extra: dict[str, float | str] = {"stale_rows": float(old_C.sum()), "stale_weight": float(weight_S.sum())}
        return Substitutes(borrowed_C, torch.where(old_C, client_C, -1), rows_SP, weight_S, position_S, start_P, extra)

    def forget(self, state: State, client_L: Tensor) -> State:
        return forget_rows(state, client_L)


# -- the last row of every client that has replied, as a state: updates here, models in `FedAMP`


def find_slots(client_K: Tensor, client_I: Tensor) -> Tensor:
    """Positions of clients in an unsorted list of slots, -1 for those without one.

    >>> find_slots(torch.tensor([7, -1, 3]), torch.tensor([3, 4, 7]))
    tensor([ 2, -1,  0])
    """
    if len(client_K) == 0:
        return torch.full_like(client_I, -1)
    known_K, slot_K = client_K.sort()
    place_I = torch.searchsorted(known_K, client_I).clamp(max=len(known_K) - 1)
    return torch.where(known_K[place_I] == client_I, slot_K[place_I], -1)


def no_rows(clients: int, width: int) -> State:
    """The state before the first reply."""
    return {"client": torch.empty(0, dtype=torch.int64), "rows": torch.empty(0, width), "population": clients}


def keep_rows(state: State, client_R: Tensor, row_RP: Tensor) -> State:
    """The state with new rows of some clients; free slots are used first, then there are twice as many as before."""
    client_S, rows_SP = state["client"], state["rows"].to(row_RP)
    fresh_R = client_R[find_slots(client_S, client_R) < 0]
    free = (client_S < 0).nonzero().squeeze(1)
    if len(fresh_R) > len(free):
        have = len(client_S)
        slots = max(have + len(fresh_R) - len(free), min(2 * have, state["population"]))
        bigger_SP = rows_SP.new_zeros(slots, rows_SP.shape[1])
        bigger_SP[:have] = rows_SP
        client_S, rows_SP = torch.cat([client_S, torch.full((slots - have,), -1)]), bigger_SP
        free = (client_S < 0).nonzero().squeeze(1)
    client_S = client_S.index_copy(0, free[: len(fresh_R)], fresh_R)
    rows_SP[find_slots(client_S, client_R).to(rows_SP.device)] = row_RP
    return state | {"client": client_S, "rows": rows_SP}


def forget_rows(state: State, client_I: Tensor) -> State:
    """The state without some clients, whose slots become free."""
    return state | {"client": state["client"].masked_fill(torch.isin(state["client"], client_I), -1)}


KINDS = {"stale": Stale}
