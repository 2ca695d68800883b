"""What the server remembers of its members: newcomers, those who are gone but count, and what each has shown so far.

A `Roster` is the state of the membership part: it travels in the server's state and so in every checkpoint. It grows
with those who move and, where a rule needs to know them, with those who have been asked; never with the population.

Shape letters: J newcomers, L clients that have left but stay in the objective, D dropped, T rounds since the last
shift, K clients ever asked, C clients of a cohort, I any clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from turnout.types import State
from turnout.world.members import Members


def _none(dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(0, dtype=dtype)


def _floats() -> Tensor:
    return _none(torch.float64)


@dataclass(frozen=True)
class Ledger:
    """One row per client ever asked, sorted by id: how often, how often in vain, its lowest and its latest loss."""

    client_K: Tensor = field(default_factory=_none)
    asked_K: Tensor = field(default_factory=_none)
    absent_K: Tensor = field(default_factory=_none)
    lowest_K: Tensor = field(default_factory=_floats)  # inf before the first reply
    latest_K: Tensor = field(default_factory=_floats)

    def after(self, client_C: Tensor, present_C: Tensor, loss_C: Tensor) -> Ledger:
        """One round on; `loss_C` is inf for those who sent none."""
        ledger = self._with(client_C)
        row_C = torch.searchsorted(ledger.client_K, client_C)
        heard_C = torch.isfinite(loss_C)
        lowest_C = torch.minimum(ledger.lowest_K[row_C], loss_C)
        latest_C = torch.where(heard_C, loss_C, ledger.latest_K[row_C])
        return replace(
            ledger,
            asked_K=ledger.asked_K.index_add(0, row_C, torch.ones_like(row_C)),
            absent_K=ledger.absent_K.index_add(0, row_C, (~present_C).long()),
            lowest_K=ledger.lowest_K.index_copy(0, row_C, lowest_C),
            latest_K=ledger.latest_K.index_copy(0, row_C, latest_C),
        )

    def _with(self, client_C: Tensor) -> Ledger:
        new_I = client_C[~torch.isin(client_C, self.client_K)]
        if not len(new_I):
            return self
        zero_I, inf_I = torch.zeros_like(new_I), torch.full(new_I.shape, torch.inf, dtype=torch.float64)
        blank = Ledger(new_I, zero_I, zero_I, inf_I, inf_I)
        joined = {f.name: torch.cat([getattr(self, f.name), getattr(blank, f.name)]) for f in fields(self)}
        order_K = joined["client_K"].argsort()
        return Ledger(**{name: value[order_K] for name, value in joined.items()})

    def without(self, client_I: Tensor) -> Ledger:
        keep_K = ~torch.isin(self.client_K, client_I)
        return Ledger(**{f.name: getattr(self, f.name)[keep_K] for f in fields(self)})

    def row(self, client: int) -> int | None:
        """Where a client that has ever replied is; None for one that has not."""
        found = ((self.client_K == client) & torch.isfinite(self.latest_K)).nonzero()
        return int(found[0]) if len(found) else None


@dataclass(frozen=True)
class Roster:
    """The membership part's state.

    newcomer_J, since_J   who gets a boost, and the round it joined in
    gone_L                have left but stay in the objective
    dropped_D, when_D     were dropped for being away, and in which round
    clock_T, loss_T       the training loss since the objective last shifted, by clock
    former                the members of the objective before it last shifted
    """

    newcomer_J: Tensor = field(default_factory=_none)
    since_J: Tensor = field(default_factory=_none)
    gone_L: Tensor = field(default_factory=_none)
    dropped_D: Tensor = field(default_factory=_none)
    when_D: Tensor = field(default_factory=_none)
    clock_T: Tensor = field(default_factory=_none)
    loss_T: Tensor = field(default_factory=_floats)
    ledger: Ledger = field(default_factory=Ledger)
    former: Members | None = None

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("ledger", "former")}
        ledger = {f.name: getattr(self.ledger, f.name) for f in fields(self.ledger)}
        return plain | {"ledger": ledger, "former": {} if self.former is None else self.former.to_state()}

    @classmethod
    def from_state(cls, state: State) -> Roster:
        former = Members.from_state(state["former"]) if state["former"] else None
        return cls(**state | {"ledger": Ledger(**state["ledger"]), "former": former})

    def shifted(self, former: Members) -> Roster:
        """The objective has shifted: another loss curve begins."""
        return replace(self, clock_T=_none(), loss_T=_floats(), former=former)

    def forget(self, client_I: Tensor) -> Roster:
        """Without any trace of these clients (that they were dropped is remembered)."""
        keep_J, keep_L = ~torch.isin(self.newcomer_J, client_I), ~torch.isin(self.gone_L, client_I)
        return replace(
            self,
            newcomer_J=self.newcomer_J[keep_J],
            since_J=self.since_J[keep_J],
            gone_L=self.gone_L[keep_L],
            ledger=self.ledger.without(client_I),
        )

    def boosted(self, client_I: Tensor, t: int) -> Roster:
        """With newcomers of this round."""
        since_I = torch.full_like(client_I, t)
        return replace(
            self, newcomer_J=torch.cat([self.newcomer_J, client_I]), since_J=torch.cat([self.since_J, since_I])
        )

    def heard(self, clock: int, loss: float) -> Roster:
        """With the training loss of a round."""
        return replace(
            self,
            clock_T=torch.cat([self.clock_T, torch.tensor([clock])]),
            loss_T=torch.cat([self.loss_T, torch.tensor([loss], dtype=torch.float64)]),
        )

    @property
    def curve(self) -> list[tuple[float, float]]:
        return list(zip(self.clock_T.tolist(), self.loss_T.tolist(), strict=True))
