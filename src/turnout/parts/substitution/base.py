"""Substitution: a redistribution of the shares of clients whose work does not count.

Shares are over the cohort, so only a client that was asked can be missing. A substitution decides how much of the
missing shares each client that counts takes over; the round adds that to its own. `Friends` is in friends.py.

Shape letters: C clients of the cohort, R replies, S old updates, K slots (clients ever seen), P shared parameters, L
clients that left, I any clients.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.parts.updates import Updates
from turnout.types import State, Tensors


@dataclass(frozen=True)
class Substitutes:
    """The outcome of a substitution.

    borrowed_C      share that each client borrows
    friend_C        the client that stands in for each missing one; -1: none in particular
    rows_SP         old updates that take part beside this round's replies, all of them finite
    row_weight_S    their weights, 0 for those not used now
    row_position_S  the client of the cohort that each stands for
    row_start_P     subtracted from each row: set where rows are weights, not updates
    extra           columns for the round's record
    """

    borrowed_C: Tensor
    friend_C: Tensor | None = None
    rows_SP: Tensor | None = None
    row_weight_S: Tensor | None = None
    row_position_S: Tensor | None = None
    row_start_P: Tensor | None = None
    extra: dict[str, float | str] = field(default_factory=dict)

    def as_votes(self, weight_C: Tensor) -> Tensor:
        """The borrowed shares where weights are votes: a friend of many has at most one vote more, the rest goes to
        all clients by weight."""
        borrowed_C = self.borrowed_C.minimum(weight_C)
        rest = self.borrowed_C.sum() - borrowed_C.sum()
        return borrowed_C + weight_C * (rest / weight_C.sum().clamp(min=1e-300))

    def rows_sum(self, factor_C: Tensor) -> Tensor | None:
        """Σ of the old updates, each with its weight and the factor of the client it stands for; None without any."""
        if self.rows_SP is None or self.row_weight_S is None or self.row_position_S is None:
            return None
        weight_S = (self.row_weight_S * factor_C[self.row_position_S]).to(self.rows_SP)
        sum_P = weight_S @ self.rows_SP  # a view of all rows: a choice of them would be a copy
        return sum_P if self.row_start_P is None else sum_P - weight_S.sum() * self.row_start_P


class Substitution(Protocol):
    """What happens to missing shares. Its state holds only tensors and numbers, so that a checkpoint can carry it.

    `observe` and `forget` modify the state in place; do not reuse it. The state of `begin` stays as it is, so that an
    experiment can be run again.
    """

    @property
    def lends(self) -> bool:
        """Whether missing shares are given to other clients (scheme A then drops its N/K)."""
        return False

    @property
    def adds_rows(self) -> bool:
        """Whether updates of earlier rounds take part."""
        return False

    def begin(self, clients: int, width: int) -> State:
        """The state before the first round."""
        return {}

    def memory(self, clients: int, width: int) -> int:
        """Bytes of the state once that many clients have replied."""
        return 0

    def hints(self, update_RP: Tensor, t: int, seed: int) -> Tensors:
        """What clients send with their encoded update, for `observe`: a row each in every tensor."""
        return {}

    def observe(self, state: State, updates: Updates) -> State:
        """Learn from the replies (similarities, last updates)."""
        return state

    @abstractmethod
    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, updates: Updates) -> Substitutes | None:
        """Give the shares of clients that do not count to those that do (there is at least one); None: none is."""

    def forget(self, state: State, client_L: Tensor) -> State:
        """These clients have left for good."""
        return state


@dataclass(frozen=True)
class NoSubstitution(Substitution):
    """Missing shares stay unused and keep the old model (paper 003's ZERO; schemes A, B and C of paper 000)."""

    lends: ClassVar[bool] = False  # readable of the class too
    adds_rows: ClassVar[bool] = False

    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, updates: Updates) -> Substitutes | None:
        return None


@dataclass(frozen=True)
class Spread(NoSubstitution):
    """Missing shares are spread over the clients that count, in proportion to their own (paper 003's Dropout)."""

    lends: ClassVar[bool] = True

    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, updates: Updates) -> Substitutes:
        return Substitutes(spread(share_C, counts_C, ~counts_C))


def spread(share_C: Tensor, counts_C: Tensor, missing_C: Tensor) -> Tensor:
    """What each client that counts borrows when the missing shares are spread in proportion.

    >>> spread(torch.tensor([0.1, 0.3, 0.6]), torch.tensor([True, True, False]), torch.tensor([False, False, True]))
    tensor([0.1500, 0.4500, 0.0000])
    """
    present_C = torch.where(counts_C, share_C, 0.0)
    return present_C / present_C.sum() * share_C[missing_C].sum()


def lend_share(share_C: Tensor, friend_C: Tensor, missing_C: Tensor) -> Tensor:
    """What each client borrows when missing clients give their shares to friends (by position in the cohort).

    >>> lend_share(torch.tensor([0.1, 0.3, 0.6]), torch.tensor([-1, -1, 0]), torch.tensor([False, False, True]))
    tensor([0.6000, 0.0000, 0.0000])
    """
    return torch.zeros_like(share_C).index_add(0, friend_C[missing_C], share_C[missing_C])


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


KINDS = {"unused": NoSubstitution, "dropout": Spread, "spread": Spread, "stale": Stale}
