"""Substitution: a redistribution of the shares of clients whose work does not count.

Shares are over the cohort, so only a client that was asked can be missing. A substitution decides how much of the
missing shares each client that counts takes over; the round adds that to its own. `Friends` is in friends.py, `Stale`
in stale.py.

Shape letters: C clients of the cohort, R replies, S old updates, P shared parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

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


KINDS = {"unused": NoSubstitution, "dropout": Spread, "spread": Spread}
