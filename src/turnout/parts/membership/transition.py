"""The beginning of a round while its joins and leaves take effect: the input of the rules, and their decisions.

`Membership` (policy.py) turns an `Outlook` into a `Transition`; server/membership.py applies it to the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from turnout.errors import UserError
from turnout.parts.local import Local
from turnout.parts.membership.departure import Bounds, bounds_from, fit_curve
from turnout.parts.membership.roster import Roster
from turnout.types import Extra, Happened
from turnout.world.events import Event
from turnout.world.members import Members


@dataclass(frozen=True)
class Constants:
    """D, V and γ of paper 000's bounds, given instead of fitted; Γ_l (`Gamma_l`) is estimated if None."""

    D: float
    V: float
    gamma: float
    Gamma_l: float | None = None

    def __post_init__(self) -> None:
        if min(self.D, self.V, self.Gamma_l or 0.0) < 0 or not self.gamma > 0:
            raise UserError("membership.constants: D, V and Gamma_l must not be negative, and gamma must be above 0")


@dataclass(frozen=True)
class Outlook:
    """The beginning of a round, as the rules see it.

    t         round
    origin    the round in which the objective last shifted
    events    joins and leaves of this round
    members   the members before them
    roster    the state of the membership part
    local     the settings of local training
    share_of  computes a client's share p_l of the objective
    old_norm  measures the gradient norm of the current objective at the current weights (None if no client is asked or
              answers)
    """

    t: int
    origin: int
    events: Sequence[Event]
    members: Members
    roster: Roster
    local: Local
    share_of: Callable[[int], float]
    old_norm: Callable[[], float | None]

    @property
    def clock(self) -> int:
        """Rounds since the objective last shifted."""
        return self.t - self.origin

    def bounds(self, client: int, given: Constants | None) -> Bounds | None:
        """The constants of the bounds for a client that leaves: given, or fitted to the reported losses."""
        losses = self.roster.ledger.losses(client)
        if given is not None:
            latest, lowest = losses or (0.0, 0.0)
            Gamma_l = latest - lowest if given.Gamma_l is None else given.Gamma_l
            return Bounds(given.D, given.V, given.gamma, Gamma_l, float(self.local.full_work))
        fit = fit_curve(self.roster.curve)
        if fit is None:
            return None
        mean = float(self.roster.loss_T[-1])  # stands for a client that has never replied
        schedule, lr = self.local.schedule, self.local.optimizer.lr
        first, now = (schedule.rate(lr, clock) for clock in (0, self.clock))
        restart = first / now if now else 1.0  # factor of a shift on the learning rate
        return bounds_from(fit, self.clock, restart, self.share_of(client), *(losses or (mean, mean)))


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

    def exclude(self, client: int, kind: str, detail: str, t: int) -> Transition:
        """A client leaves or is dropped, and the objective is over the others."""
        roster = self.roster.forget(client)
        if kind == "drop":
            roster = replace(
                roster,
                dropped_D=torch.cat([roster.dropped_D, torch.tensor([client])]),
                when_D=torch.cat([roster.when_D, torch.tensor([t])]),
            )
        members, out = self.members.leave(client), (*self.out, client)
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
        return there.not_waiting(client).noted(client, "join", detail)

    def not_waiting(self, client: int) -> Transition:
        """A client that had been dropped has joined or left: it will not rejoin by itself."""
        stays_D = self.roster.dropped_D != client
        dropped_D, when_D = self.roster.dropped_D[stays_D], self.roster.when_D[stays_D]
        return replace(self, roster=replace(self.roster, dropped_D=dropped_D, when_D=when_D))
