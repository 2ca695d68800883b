"""The last row of every client that has replied, as a state: `Stale` keeps updates, `FedAMP` models.

Shape letters: K or S slots, R replies, P columns of a row, I any clients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.types import State


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
