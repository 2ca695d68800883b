"""Rows for clients as they come: who has which slot, and room for newcomers.

Shape letters: K or S slots, R replies, P columns of a row, I any clients.
"""

from __future__ import annotations

import torch
from torch import Tensor


def find_slots(client_K: Tensor, client_I: Tensor) -> Tensor:
    """Where clients are in an unsorted list of slots, -1 for those without one.

    >>> find_slots(torch.tensor([7, -1, 3]), torch.tensor([3, 4, 7]))
    tensor([ 2, -1,  0])
    """
    if len(client_K) == 0:
        return torch.full_like(client_I, -1)
    known_K, slot_K = client_K.sort()
    place_I = torch.searchsorted(known_K, client_I).clamp(max=len(known_K) - 1)
    return torch.where(known_K[place_I] == client_I, slot_K[place_I], -1)


def room_for(client_S: Tensor, rows_SP: Tensor, fresh_R: Tensor, population: int) -> tuple[Tensor, Tensor]:
    """The same rows with room for newcomers: free ones first, then twice as many as before."""
    free = (client_S < 0).nonzero().squeeze(1)
    if len(fresh_R) > len(free):
        have = len(client_S)
        need = have + len(fresh_R) - len(free)
        slots = max(need, min(2 * have, population))
        bigger_SP = rows_SP.new_zeros(slots, rows_SP.shape[1])
        bigger_SP[:have] = rows_SP
        client_S, rows_SP = torch.cat([client_S, torch.full((slots - have,), -1)]), bigger_SP
        free = (client_S < 0).nonzero().squeeze(1)
    client_S = client_S.index_copy(0, free[: len(fresh_R)], fresh_R)
    return client_S, rows_SP
