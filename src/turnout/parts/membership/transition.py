"""The beginning of a round while its joins and leaves take effect: what the rules see, and what becomes of the server.

Shape letters: I any clients, L gone but in the objective, D dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turnout.errors import Mistake
from turnout.parts.membership.departure import Bounds, bounds_from, fit_curve
from turnout.parts.membership.roster import Roster
from turnout.parts.terms.base import Reform
from turnout.round_log import Event as Happened
from turnout.types import Tensors, wire_bytes
from turnout.world.members import Members

if TYPE_CHECKING:
    from turnout.exchange import Runtime, Server
    from turnout.experiment import Algorithm

Held = dict[str, Tensors]  # by term


@dataclass(frozen=True)
class Constants:
    """D, V and γ of paper 000's bounds, given rather than fitted; Γ_l is estimated where it is left out."""

    D: float
    V: float
    gamma: float
    Gamma_l: float | None = None

    def __post_init__(self) -> None:
        if min(self.D, self.V, self.Gamma_l or 0.0) < 0 or not self.gamma > 0:
            raise Mistake("membership.constants: D, V and Gamma_l must not be negative, and gamma must be above 0")


@dataclass(frozen=True)
class Moment:
    """The beginning of a round, as the rules see it."""

    server: Server
    roster: Roster
    t: int
    algorithm: Algorithm
    runtime: Runtime

    @property
    def clock(self) -> int:
        return self.t - self.server.origin

    def bounds(self, client: int, given: Constants | None) -> Bounds | None:
        """The constants of the bounds for a client that leaves: given, or fitted to what has been reported so far."""
        ledger, E = self.roster.ledger, float(self.algorithm.local.full_work)
        row = ledger.row(client)
        if given is not None:
            Gamma_l = 0.0 if row is None else float(ledger.latest_K[row] - ledger.lowest_K[row])
            return Bounds(given.D, given.V, given.gamma, Gamma_l if given.Gamma_l is None else given.Gamma_l, E)
        fit = fit_curve(self.roster.curve)
        if fit is None:
            return None
        mean = float(self.roster.loss_T[-1])  # stands for a client that was never heard of
        latest, lowest = (mean, mean) if row is None else (float(ledger.latest_K[row]), float(ledger.lowest_K[row]))
        return bounds_from(fit, self.clock, self.restart, self.share(client), latest, lowest)

    @property
    def restart(self) -> float:
        """What a shift would multiply the learning rate by."""
        local = self.algorithm.local
        first, now = (local.schedule.rate(local.optimizer.lr, clock) for clock in (0, self.clock))
        return first / now if now else 1.0

    def share(self, client: int) -> float:
        """p_l: the client's part of the objective."""
        return float(self.parts(torch.tensor([client]))[0])

    def parts(self, client_I: Tensor) -> Tensor:
        """The same for some clients."""
        objective, runtime = self.server.objective, self.runtime
        mean = partial(runtime.mean_examples, objective)
        return self.algorithm.shares.parts(runtime.examples(client_I), len(objective), mean)

    def mass(self, objective: Members) -> float:
        """What the parts of an objective are parts of."""
        return self.algorithm.shares.mass(len(objective), partial(self.runtime.mean_examples, objective))


@dataclass(frozen=True)
class Scene:
    """Members and roster while this round's events take effect, one after another."""

    members: Members
    roster: Roster
    log: tuple[Happened, ...] = ()
    out: tuple[int, ...] = ()  # excluded in this round: whatever is kept of them is forgotten
    shifted: bool = False
    extra: dict[str, float | str] = field(default_factory=dict)

    @property
    def gone(self) -> set[int]:
        return set(self.roster.gone_L.tolist())

    def noted(self, client: int, kind: str, detail: str) -> Scene:
        return replace(self, log=(*self.log, (client, kind, detail)))

    def said(self, numbers: Mapping[str, float]) -> Scene:
        return replace(self, extra={**self.extra, **numbers})

    def included(self, client: int, detail: str) -> Scene:
        gone_L = torch.cat([self.roster.gone_L, torch.tensor([client])]).sort().values
        left = replace(self, members=self.members.leave(client), roster=replace(self.roster, gone_L=gone_L))
        return left.noted(client, "leave", detail)

    def excluded(self, client: int, kind: str, detail: str, t: int) -> Scene:
        roster = self.roster.forget(torch.tensor([client]))
        if kind == "drop":
            roster = replace(
                roster,
                dropped_D=torch.cat([roster.dropped_D, torch.tensor([client])]),
                when_D=torch.cat([roster.when_D, torch.tensor([t])]),
            )
        members, out = self.members.leave(client), (*self.out, client)
        return replace(self, members=members, roster=roster, out=out, shifted=True).noted(client, kind, detail)

    def returned(self, client: int) -> Scene:
        gone_L = self.roster.gone_L[self.roster.gone_L != client]
        back = replace(self, members=self.members.join(client), roster=replace(self.roster, gone_L=gone_L))
        return back.noted(client, "return", "was included all along")

    def joined(self, client: int, detail: str, boosted_from: int | None) -> Scene:
        roster, new = self.roster, torch.tensor([client])
        if boosted_from is not None:
            roster = roster.boosted(new, boosted_from)
        there = replace(self, members=self.members.join(client), roster=roster, shifted=True)
        return there.not_waiting(client).noted(client, "join", detail)

    def not_waiting(self, client: int) -> Scene:
        """A client that was dropped and is here again, or has left: it will not rejoin by itself."""
        stays_D = self.roster.dropped_D != client
        if bool(stays_D.all()):
            return self
        dropped_D, when_D = self.roster.dropped_D[stays_D], self.roster.when_D[stays_D]
        return replace(self, roster=replace(self.roster, dropped_D=dropped_D, when_D=when_D))

    def apply(self, moment: Moment) -> tuple[Server, int]:
        """The server after all that, and the bytes of the farewells: the clock restarts if the objective has shifted,
        the excluded are forgotten."""
        server, parts = moment.server, dict(moment.server.parts)
        if self.members == server.members and self.roster is moment.roster:
            return server, 0
        roster = self.roster.shifted(server.objective) if self.shifted else self.roster
        heard_I, said = torch.empty(0, dtype=torch.int64), Held()
        if self.out:
            out_I = torch.tensor(self.out)
            heard_I, said = moment.runtime.forget(out_I)
            parts["mixing"] = moment.algorithm.mixing.forget(parts["mixing"], out_I)
            parts["substitution"] = moment.algorithm.substitution.forget(parts["substitution"], out_I)
            parts["compression"] = moment.algorithm.compression.forget(parts["compression"], out_I)
        parts["membership"] = roster.to_state()
        origin = moment.t if self.shifted else server.origin
        after = replace(server, members=self.members, origin=origin, parts=parts)
        if self.shifted and any(server.down.values()):
            after = replace(after, down=self._reformed(moment, after.objective, heard_I, said))
        return after, sum(wire_bytes(rows) for rows in said.values())

    def _reformed(self, moment: Moment, objective: Members, heard_I: Tensor, said: Held) -> Held:
        """What the terms hold for the new objective, given the farewells of those who had something to say."""
        mass = moment.mass(objective)
        reform = Reform(moment.parts(heard_I), moment.mass(moment.server.objective) / mass if mass else 0.0)
        down, terms = moment.server.down, moment.algorithm.terms
        return {term.name: term.reform(down[term.name], said.get(term.name, {}), reform) for term in terms}
