"""A two-state Markov chain per client whose state can be computed for any round, in any order, without a history.

Coupling from the past: in round s every client has a number u_s in [0, 1), which moves both states:

    up   stays up      if u_s < 1 - fall,
    down comes up      if u_s < rise.

If u_s is below both bounds or above both, the state after round s is known whatever it was before. Otherwise the state
stays, or, if rise > 1 - fall, it changes. So walk back from t to the latest round that decides. Rounds before 0 are
walked through too, which makes round 0 an exact draw from the long-run distribution.

Shape letters: C clients, U clients still undecided, B rounds of a block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turnout.rng import key, keys, unit


def up_now(client_C: Tensor, t: int, seed: int, rise: float, fall: float, purpose: str = "onoff") -> Tensor:
    """Which clients are up in round t; chains of another purpose are other chains."""
    both_up, any_up = min(rise, 1 - fall), max(rise, 1 - fall)
    flips = rise > 1 - fall
    up_C = torch.zeros(len(client_C), dtype=torch.bool)
    undecided_U = torch.arange(len(client_C))
    block = min(32, math.ceil(1 / (1 - any_up + both_up)))  # rounds at a time: as many as are needed on average
    last = t
    while len(undecided_U):
        u_BU = numbers_before(client_C[undecided_U], last, block, seed, purpose)
        decides_BU = (u_BU < both_up) | (u_BU >= any_up)
        back_U = decides_BU.to(torch.int8).argmax(0)  # the first row that decides, counted back from `last`
        state_U = u_BU.gather(0, back_U[None])[0] < both_up
        if flips:
            state_U ^= ((t - last + back_U) % 2).to(torch.bool)
        found_U = decides_BU.any(0)
        up_C[undecided_U[found_U]] = state_U[found_U]
        undecided_U = undecided_U[~found_U]
        last -= block
    return up_C


def numbers_before(client_U: Tensor, last: int, block: int, seed: int, purpose: str) -> Tensor:
    """The numbers u_s of some clients in rounds last, last - 1, ..."""
    base_B = torch.tensor([key(seed, purpose, s) for s in range(last, last - block, -1)])
    return unit(keys(base_B[:, None], client_U[None, :]))
