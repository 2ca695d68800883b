"""Who took part when, and by how much the client that took part most has moved all releases of a run.

Shape letters: R clients that take part now, M participations so far.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from turnout.parts.privacy.factorisation import Factorisation
from turnout.types import State


def empty_ledger(rounds: int) -> State:
    """The ledger of a run of so many rounds before the first.

    client, round  of each participation
    raised         by how much it raised |Σ_i C e_i|² of its client, i the client's rounds
    most           the largest |Σ_i C e_i|² of a client
    """
    none = torch.empty(0, dtype=torch.int64)
    return {"rounds": rounds, "client": none, "round": none, "raised": none.double(), "most": 0.0}


def took_part(ledger: State, factorisation: Factorisation, client_R: Tensor, t: int) -> State:
    """The ledger after these clients took part in round t.

    >>> ledger = took_part(empty_ledger(9), Factorisation(), torch.tensor([4, 7]), t=0)
    >>> took_part(ledger, Factorisation(), torch.tensor([7]), t=3)["most"]
    2.0
    """
    names = ("client", "round", "raised")
    client_M, round_M, raised_M = (ledger[name].numpy() for name in names)  # small arrays: torch takes 5 times as long
    overlap_t, own_R = factorisation.overlaps(t, ledger["rounds"]).numpy(), np.sort(client_R.numpy())
    mine_M = np.flatnonzero(np.isin(client_M, own_R))
    place_M = np.searchsorted(own_R, client_M[mine_M])
    raised_R = overlap_t[0] + 2 * np.bincount(place_M, overlap_t[t - round_M[mine_M]], len(own_R))
    total_R = raised_R + np.bincount(place_M, raised_M[mine_M], len(own_R))
    now = zip(names, (client_M, round_M, raised_M), (own_R, np.full_like(own_R, t), raised_R), strict=True)
    more = {name: torch.from_numpy(np.concatenate([before_M, now_R])) for name, before_M, now_R in now}
    return {"rounds": ledger["rounds"], "most": max(float(ledger["most"]), float(total_R.max())), **more}


def count_again(client_M: Tensor, round_M: Tensor, factorisation: Factorisation, rounds: int) -> State:
    """The ledger of these participations in a run of so many rounds."""
    ledger = empty_ledger(rounds)
    for t in round_M.unique().tolist():
        ledger = took_part(ledger, factorisation, client_M[round_M == t], t)
    return ledger


def kept_participations(
    client_M: Tensor, round_M: Tensor, min_separation: int, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """The participations that remain, sorted by round, where a server declines those that are too close or too many.

    >>> kept_participations(torch.tensor([5, 5, 5, 5]), torch.tensor([0, 2, 3, 9]), min_separation=3, most=2)
    (tensor([5, 5]), tensor([0, 3]))
    """
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    kept = []
    order = round_M.argsort(stable=True)
    for place, client, t in zip(order.tolist(), client_M[order].tolist(), round_M[order].tolist(), strict=True):
        often = count.get(client, 0)
        if t - last.get(client, -min_separation) >= min_separation and (most is None or often < most):
            last[client], count[client] = t, often + 1
            kept.append(place)
    return client_M[kept], round_M[kept]
