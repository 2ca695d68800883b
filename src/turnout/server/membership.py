"""The beginning of a round: clients join and leave, which changes everything the server carries.

Shape letters: I any clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from turnout.exchange import Departure
from turnout.machine.profiling import staged
from turnout.parts.membership.policy import Outlook
from turnout.parts.membership.roster import Transition
from turnout.parts.robust import Robust
from turnout.parts.terms.base import Departures, ObjectiveChange, remembers
from turnout.rng import draw
from turnout.server.state import Context, Server
from turnout.types import SILENTLY, Extra, Happened, Tensors, wire_bytes
from turnout.world.events import Event, Leave
from turnout.world.members import Members


@dataclass(frozen=True)
class MembershipChanges:
    """What changed at the beginning of a round.

    events    joins and leaves, for the record
    extra     further numbers for the record
    bytes_up  bytes that clients sent when they left
    """

    events: Sequence[Happened] = ()
    extra: Extra = field(default_factory=dict)
    bytes_up: int = 0


NO_CHANGES = MembershipChanges()


@staged("membership")
def update_membership(
    server: Server, events: Sequence[Event], t: int, ctx: Context
) -> tuple[Server, MembershipChanges]:  # fmt: skip
    """Apply this round's joins and leaves: the server for this round, and what changed."""
    membership = ctx.algorithm.membership
    outlook = Outlook(
        t=t,
        origin=server.origin,
        events=events,
        members=server.members,
        roster=server.roster,
        local=ctx.algorithm.local,
        share_of=lambda client: float(_objective_shares(server, torch.tensor([client]), ctx)[0]),
        old_norm=lambda: _gradient_norm(server, t, ctx),
    )
    silent = frozenset(int(e.client) for e in events if isinstance(e, Leave) and e.silent)
    change = membership.decide(outlook)
    log = tuple(
        e._replace(detail=f"{SILENTLY}: {e.detail}") if e.client in silent and e.kind == "leave" else e
        for e in change.log
    )
    if change.members == server.members and change.roster is server.roster:
        return server, MembershipChanges(log, change.extra)
    after, bytes_up = _apply(change, silent, server, t, ctx)
    return after, MembershipChanges(log, change.extra, bytes_up)


def _objective_shares(server: Server, client_I: Tensor, ctx: Context) -> Tensor:
    """p_k of some clients in the objective before the change."""
    mean = partial(ctx.runtime.mean_examples, server.objective)
    return ctx.algorithm.shares.parts(ctx.runtime.examples(client_I), len(server.objective), mean)


def _gradient_norm(server: Server, t: int, ctx: Context) -> float | None:
    """Gradient norm of the objective before the change, at the current weights.

    Over at most `surveyed` members, those that answer; None if no member is asked or answers.
    """
    members, surveyed = server.members, ctx.algorithm.membership.surveyed
    if not surveyed or not len(members):
        return None
    client_I = members.at(draw(min(surveyed, len(members)), len(members), t, ctx.seed, "survey"))
    shares = replace(ctx.algorithm.shares, over="normalised")
    share_I = shares.of(ctx.runtime.examples(client_I), len(members), None)
    gradient_P = ctx.runtime.gradient(server.shared_P, server.states, client_I, share_I, t)
    return None if gradient_P is None else float(gradient_P.norm())


def _apply(
    change: Transition, silent: frozenset[int], server: Server, t: int, ctx: Context
) -> tuple[Server, int]:  # fmt: skip
    """The server after a change of members, and the bytes that leaving clients sent.

    A client that leaves the objective sends what terms need to forget it; one that stays in the objective sends what
    they need to remember it; one that vanished sends nothing. The clock restarts if the objective shifted.
    """
    algorithm = ctx.algorithm

    def depart(clients: Sequence[int]) -> Departure:
        client_I = torch.tensor([client for client in clients if client not in silent], dtype=torch.int64)
        if isinstance(algorithm.aggregation, Robust):  # nothing protects a last message, so there is none
            client_I = client_I[:0]
        return ctx.runtime.depart(client_I, server.outbox) if len(client_I) else Departure(client_I, {}, {})

    leaving = depart(change.out)
    staying = depart(change.gone if any(remembers(term) for term in algorithm.terms) else ())
    left = server.left.plus(staying).among(change.roster.gone_L)
    gone_I = torch.tensor([*change.out, *change.gone], dtype=torch.int64)
    time = replace(server.time, in_flight=server.time.in_flight.without(gone_I))
    after = replace(server, left=left, members=change.members, time=time)
    if change.out:
        out_I = torch.tensor(change.out)
        ctx.runtime.forget(out_I)
        after = replace(
            after,
            mixing=algorithm.mixing.forget(server.mixing, out_I),
            substitution=algorithm.substitution.forget(server.substitution, out_I),
            outbox=server.outbox.without(out_I),
        )
    roster = change.roster.shifted(server.objective) if change.shifted else change.roster
    after = replace(after, roster=roster, origin=t if change.shifted else server.origin)
    if change.shifted and any(server.term_states.values()):
        after = replace(after, term_states=_terms_after(server, after.objective, leaving, ctx))
    return after, sum(map(wire_bytes, (*leaving.to_forget.values(), *staying.to_remember.values())))


def _terms_after(server: Server, objective: Members, leaving: Departure, ctx: Context) -> dict[str, Tensors]:
    """The terms' server state for a new objective, given what leaving clients sent."""
    shares, mean_examples = ctx.algorithm.shares, ctx.runtime.mean_examples
    before, mass = (shares.mass(len(o), partial(mean_examples, o)) for o in (server.objective, objective))
    change = ObjectiveChange(_objective_shares(server, leaving.client_H, ctx), before / mass if mass else 0.0)
    return server.term_states | {
        term.name: term.on_objective_change(server.term_states[term.name], leaving.to_forget.get(term.name, {}), change)
        for term in ctx.algorithm.terms
        if isinstance(term, Departures)
    }
