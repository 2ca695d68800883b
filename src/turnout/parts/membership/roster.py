"""The state of the membership part between rounds (`Roster`), and while joins and leaves take effect (`Transition`).

A `Roster` is part of the server's state and of every checkpoint. It grows with the clients that join or leave and,
where a rule needs them, with those that were asked; never with the population.

Shape letters: J newcomers, L clients that have left but stay in the objective, T rounds since the last
shift, K clients ever asked, C clients of a cohort, I any clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from turnout.types import Extra, Happened, State
from turnout.world.members import Members


def _ints() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


def _floats() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True)
class ClientHistory:
    """One row per client ever asked, sorted by id.

    client_K            the clients
    asked_K, absent_K   rounds in which each was asked, and of them those in which it was absent
    lowest_K, latest_K  its lowest and latest loss; inf before the first reply
    """

    client_K: Tensor = field(default_factory=_ints)
    asked_K: Tensor = field(default_factory=_ints)
    absent_K: Tensor = field(default_factory=_ints)
    lowest_K: Tensor = field(default_factory=_floats)
    latest_K: Tensor = field(default_factory=_floats)

    def after(self, client_C: Tensor, present_C: Tensor, loss_C: Tensor) -> ClientHistory:
        """The ledger after a round; `loss_C` is inf for clients that sent none."""
        ledger, new_I = self, client_C[~torch.isin(client_C, self.client_K)]
        if len(new_I):
            zero_I, inf_I = torch.zeros_like(new_I), torch.full(new_I.shape, torch.inf, dtype=torch.float64)
            blank = ClientHistory(new_I, zero_I, zero_I, inf_I, inf_I)
            joined = {f.name: torch.cat([getattr(self, f.name), getattr(blank, f.name)]) for f in fields(self)}
            order_K = joined["client_K"].argsort()
            ledger = ClientHistory(**{name: value[order_K] for name, value in joined.items()})
        row_C = torch.searchsorted(ledger.client_K, client_C)
        lowest_C = torch.minimum(ledger.lowest_K[row_C], loss_C)
        latest_C = torch.where(torch.isfinite(loss_C), loss_C, ledger.latest_K[row_C])
        return replace(
            ledger,
            asked_K=ledger.asked_K.index_add(0, row_C, torch.ones_like(row_C)),
            absent_K=ledger.absent_K.index_add(0, row_C, (~present_C).long()),
            lowest_K=ledger.lowest_K.index_copy(0, row_C, lowest_C),
            latest_K=ledger.latest_K.index_copy(0, row_C, latest_C),
        )

    def losses(self, client: int) -> tuple[float, float] | None:
        """The latest and the lowest loss of a client; None for one that has never replied."""
        place = ((self.client_K == client) & torch.isfinite(self.latest_K)).nonzero()
        return (float(self.latest_K[place[0, 0]]), float(self.lowest_K[place[0, 0]])) if len(place) else None


@dataclass(frozen=True)
class Roster:
    """The state of the membership part.

    newcomer_J, since_J  clients that were ever boosted, and the round each joined in: once, also if they come back
    gone_L               clients that have left but stay in the objective
    clock_T, loss_T      the training loss since the objective last shifted, by clock
    ledger               the history of each client ever asked
    former               the members of the objective before it last shifted
    """

    newcomer_J: Tensor = field(default_factory=_ints)
    since_J: Tensor = field(default_factory=_ints)
    gone_L: Tensor = field(default_factory=_ints)
    clock_T: Tensor = field(default_factory=_ints)
    loss_T: Tensor = field(default_factory=_floats)
    ledger: ClientHistory = field(default_factory=ClientHistory)
    former: Members | None = None

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("ledger", "former")}
        ledger = {f.name: getattr(self.ledger, f.name) for f in fields(self.ledger)}
        return plain | {"ledger": ledger, "former": {} if self.former is None else self.former.to_state()}

    @classmethod
    def from_state(cls, state: State) -> Roster:
        """From a checkpoint."""
        plain = {f.name: state[f.name] for f in fields(cls)}
        former = Members.from_state(state["former"]) if state["former"] else None
        return cls(**plain | {"ledger": ClientHistory(**state["ledger"]), "former": former})

    def shifted(self, former: Members) -> Roster:
        """The objective has shifted: a new loss curve begins."""
        return replace(self, clock_T=_ints(), loss_T=_floats(), former=former)

    def forget(self, client: int) -> Roster:
        """Without any trace of a client, but that it has had its boost."""
        keep_L, keep_K = (v != client for v in (self.gone_L, self.ledger.client_K))
        return replace(
            self,
            gone_L=self.gone_L[keep_L],
            ledger=ClientHistory(**{f.name: getattr(self.ledger, f.name)[keep_K] for f in fields(ClientHistory)}),
        )

    def observed(self, clock: int, loss: float) -> Roster:
        """With the training loss of a round."""
        return replace(
            self,
            clock_T=torch.cat([self.clock_T, torch.tensor([clock])]),
            loss_T=torch.cat([self.loss_T, torch.tensor([loss], dtype=torch.float64)]),
        )

    @property
    def curve(self) -> list[tuple[float, float]]:
        """The training losses since the last shift, each with its clock."""
        return list(zip(self.clock_T.tolist(), self.loss_T.tolist(), strict=True))


@dataclass(frozen=True)
class Transition:
    """Members and roster while this round's events take effect, one after another.

    members  current members
    roster   current state of the membership part
    log      what happened, for the record
    out      clients excluded in this round: all that is kept of them is deleted
    gone     clients that left in this round but stay in the objective
    shifted  whether the objective has changed
    extra    numbers for the record
    """

    members: Members
    roster: Roster
    log: tuple[Happened, ...] = ()
    out: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    shifted: bool = False
    extra: Extra = field(default_factory=dict)

    @property
    def included(self) -> set[int]:
        """Clients that have left, now or earlier, but stay in the objective."""
        return set(self.roster.gone_L.tolist())

    def noted(self, client: int, kind: str, detail: str) -> Transition:
        """With an entry in the log."""
        return replace(self, log=(*self.log, Happened(client, kind, detail)))

    def with_numbers(self, numbers: Mapping[str, float]) -> Transition:
        """With numbers for the record."""
        return replace(self, extra={**self.extra, **numbers})

    def include(self, client: int, detail: str) -> Transition:
        """A client leaves and stays in the objective."""
        gone_L = torch.cat([self.roster.gone_L, torch.tensor([client])]).sort().values
        roster = replace(self.roster, gone_L=gone_L)
        left = replace(self, members=self.members.leave(client), roster=roster, gone=(*self.gone, client))
        return left.noted(client, "leave", detail)

    def exclude(self, client: int, kind: str, detail: str) -> Transition:
        """A client leaves or is dropped, and the objective is over the others."""
        members, roster, out = self.members.leave(client), self.roster.forget(client), (*self.out, client)
        return replace(self, members=members, roster=roster, out=out, shifted=True).noted(client, kind, detail)

    def return_(self, client: int) -> Transition:
        """A client that was included comes back."""
        gone_L = self.roster.gone_L[self.roster.gone_L != client]
        back = replace(self, members=self.members.join(client), roster=replace(self.roster, gone_L=gone_L))
        return back.noted(client, "return", "was included all along")

    def join(self, client: int, detail: str, boosted_from: int | None) -> Transition:
        """A client joins, with a boost from this round on if given."""
        roster = self.roster
        if boosted_from is not None:
            roster = replace(
                roster,
                newcomer_J=torch.cat([roster.newcomer_J, torch.tensor([client])]),
                since_J=torch.cat([roster.since_J, torch.tensor([boosted_from])]),
            )
        there = replace(self, members=self.members.join(client), roster=roster, shifted=True)
        return there.noted(client, "join", detail)
