"""The beginning of a round while its joins and leaves take effect: what the rules see, and what they decide.

`Membership` (policy.py) turns an `Outlook` into a `Transition`; server/opening.py applies it to the server.

Shape letters: I any clients, L gone but in the objective, D dropped.
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
    """D, V and γ of paper 000's bounds, given rather than fitted; Γ_l is estimated where it is left out."""

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

    `share_of` gives a client's part p_l of the objective, `old_norm` the gradient norm of the objective so far at the
    current weights (None where nobody is asked, or answers). Both are computed only if a rule asks.
    """

    t: int
    origin: int  # the round in which the objective last shifted
    events: Sequence[Event]
    members: Members
    roster: Roster
    local: Local
    share_of: Callable[[int], float]
    old_norm: Callable[[], float | None]

    @property
    def clock(self) -> int:
        return self.t - self.origin

    def bounds(self, client: int, given: Constants | None) -> Bounds | None:
        """The constants of the bounds for a client that leaves: given, or fitted to what has been reported so far."""
        ledger, E = self.roster.ledger, float(self.local.full_work)
        row = ledger.row(client)
        if given is not None:
            Gamma_l = 0.0 if row is None else float(ledger.latest_K[row] - ledger.lowest_K[row])
            return Bounds(given.D, given.V, given.gamma, Gamma_l if given.Gamma_l is None else given.Gamma_l, E)
        fit = fit_curve(self.roster.curve)
        if fit is None:
            return None
        mean = float(self.roster.loss_T[-1])  # stands for a client that was never heard of
        latest, lowest = (mean, mean) if row is None else (float(ledger.latest_K[row]), float(ledger.lowest_K[row]))
        return bounds_from(fit, self.clock, self.restart, self.share_of(client), latest, lowest)

    @property
    def restart(self) -> float:
        """What a shift would multiply the learning rate by."""
        schedule, lr = self.local.schedule, self.local.optimizer.lr
        first, now = (schedule.rate(lr, clock) for clock in (0, self.clock))
        return first / now if now else 1.0


@dataclass(frozen=True)
class Transition:
    """Members and roster while this round's events take effect, one after another."""

    members: Members
    roster: Roster
    log: tuple[Happened, ...] = ()
    out: tuple[int, ...] = ()  # excluded in this round: whatever is kept of them is forgotten
    gone: tuple[int, ...] = ()  # left in this round, but stay in the objective
    shifted: bool = False
    extra: Extra = field(default_factory=dict)

    @property
    def included_before(self) -> set[int]:
        """Who has left but stays in the objective, now or earlier."""
        return set(self.roster.gone_L.tolist())

    def noted(self, client: int, kind: str, detail: str) -> Transition:
        return replace(self, log=(*self.log, Happened(client, kind, detail)))

    def said(self, numbers: Mapping[str, float]) -> Transition:
        return replace(self, extra={**self.extra, **numbers})

    def included(self, client: int, detail: str) -> Transition:
        gone_L = torch.cat([self.roster.gone_L, torch.tensor([client])]).sort().values
        roster = replace(self.roster, gone_L=gone_L)
        left = replace(self, members=self.members.leave(client), roster=roster, gone=(*self.gone, client))
        return left.noted(client, "leave", detail)

    def excluded(self, client: int, kind: str, detail: str, t: int) -> Transition:
        roster = self.roster.forget(torch.tensor([client]))
        if kind == "drop":
            roster = replace(
                roster,
                dropped_D=torch.cat([roster.dropped_D, torch.tensor([client])]),
                when_D=torch.cat([roster.when_D, torch.tensor([t])]),
            )
        members, out = self.members.leave(client), (*self.out, client)
        return replace(self, members=members, roster=roster, out=out, shifted=True).noted(client, kind, detail)

    def returned(self, client: int) -> Transition:
        gone_L = self.roster.gone_L[self.roster.gone_L != client]
        back = replace(self, members=self.members.join(client), roster=replace(self.roster, gone_L=gone_L))
        return back.noted(client, "return", "was included all along")

    def joined(self, client: int, detail: str, boosted_from: int | None) -> Transition:
        roster, new = self.roster, torch.tensor([client])
        if boosted_from is not None:
            roster = roster.boosted(new, boosted_from)
        there = replace(self, members=self.members.join(client), roster=roster, shifted=True)
        return there.not_waiting(client).noted(client, "join", detail)

    def not_waiting(self, client: int) -> Transition:
        """A client that was dropped and is here again, or has left: it will not rejoin by itself."""
        stays_D = self.roster.dropped_D != client
        if bool(stays_D.all()):
            return self
        dropped_D, when_D = self.roster.dropped_D[stays_D], self.roster.when_D[stays_D]
        return replace(self, roster=replace(self.roster, dropped_D=dropped_D, when_D=when_D))
