"""Who stands in for those whose work does not count: a redistribution of shares.

Shares are over the cohort that was asked, so only somebody who was asked can be missing. A substitution says how much
of the missing shares each of those who count takes over; the round adds that to their own.

Shape letters: C clients of the cohort, R replies, S old updates, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.types import State, Turnout


@dataclass(frozen=True)
class Lent:
    """The outcome of a substitution: what each client borrows, and rows that take part beside this round's replies."""

    borrowed_C: Tensor
    friend_C: Tensor | None = None  # the client that stands in for each that is missing, -1 elsewhere
    rows_SP: Tensor | None = None  # old updates that stand in, and what they weigh
    row_weight_S: Tensor | None = None
    extra: dict[str, float | str] = field(default_factory=dict)


class Substitution(Protocol):
    """State goes in and comes out; it holds only tensors and numbers, so that a checkpoint can carry it."""

    @property
    def lends(self) -> bool:
        """Whether missing shares are given away at all (scheme A then drops its N/K)."""
        ...

    def begin(self, clients: int, width: int) -> State:
        """The state before the first round."""
        ...

    def observe(self, state: State, client_R: Tensor, update_RP: Tensor, turnout: Turnout) -> State:
        """Learn from what arrived (similarities, last updates); the rows must be copied to be kept."""
        ...

    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, turnout: Turnout) -> Lent:
        """Give the shares of those who do not count to those who do."""
        ...

    def forget(self, state: State, client_I: Tensor) -> State:
        """Some clients have left for good: without a trace of them."""
        ...


@dataclass(frozen=True)
class Unused:
    """Missing shares stay unused and keep the old model (paper 003's ZERO; schemes A, B and C of paper 000)."""

    lends: ClassVar[bool] = False

    def begin(self, clients: int, width: int) -> State:
        return {}

    def observe(self, state: State, client_R: Tensor, update_RP: Tensor, turnout: Turnout) -> State:
        return state

    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, turnout: Turnout) -> Lent:
        return Lent(torch.zeros_like(share_C))

    def forget(self, state: State, client_I: Tensor) -> State:
        return state


@dataclass(frozen=True)
class Dropout(Unused):
    """Missing shares are spread over those who count, in proportion to their own."""

    lends: ClassVar[bool] = True

    def lend(self, state: State, share_C: Tensor, counts_C: Tensor, turnout: Turnout) -> Lent:
        return Lent(spread(share_C, counts_C, ~counts_C))


def spread(share_C: Tensor, counts_C: Tensor, missing_C: Tensor) -> Tensor:
    """What each of those who count borrows when the missing shares are spread in proportion.

    >>> spread(torch.tensor([0.1, 0.3, 0.6]), torch.tensor([True, True, False]), torch.tensor([False, False, True]))
    tensor([0.1500, 0.4500, 0.0000])
    """
    present_C = torch.where(counts_C, share_C, 0.0)
    return present_C / present_C.sum() * share_C[missing_C].sum()
