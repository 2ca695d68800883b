"""The beginning of a round: joins and leaves take effect on everything the server carries.

Shape letters: I any clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from turnout.exchange import Departure, Runtime
from turnout.experiment import Algorithm
from turnout.parts.membership.transition import Outlook, Transition
from turnout.parts.terms.base import Departures, ObjectiveChange, remembers
from turnout.rng import draw
from turnout.server.state import Server
from turnout.types import SILENTLY, Extra, Happened, Tensors, wire_bytes
from turnout.world.events import Leave
from turnout.world.members import Members


@dataclass(frozen=True)
class MembershipChanges:
    """What the beginning of a round brought: events for its record, and numbers beside them."""

    events: Sequence[Happened] = ()
    extra: Extra = field(default_factory=dict)
    bytes_up: int = 0  # what those who left have sent for it


@dataclass(frozen=True)
class _Scene:
    """Who may be asked about the objective at the beginning of a round."""

    server: Server
    t: int
    seed: int
    algorithm: Algorithm
    runtime: Runtime

    def parts(self, client_I: Tensor) -> Tensor:
        """p_k of some clients in the objective as it was."""
        objective = self.server.objective
        mean = partial(self.runtime.mean_examples, objective)
        return self.algorithm.shares.parts(self.runtime.examples(client_I), len(objective), mean)

    def mass(self, objective: Members) -> float:
        """Total mass of an objective: clients, or samples (counted only if shares are by samples)."""
        return self.algorithm.shares.mass(len(objective), partial(self.runtime.mean_examples, objective))

    def old_norm(self) -> float | None:
        """The gradient norm of the objective so far at the current weights, over those of at most `surveyed` members
        who answer; None where nobody is asked or answers."""
        server, surveyed = self.server, self.algorithm.membership.surveyed
        if not surveyed or not len(server.members):
            return None
        count = min(surveyed, len(server.members))
        client_I = server.members.at(draw(count, len(server.members), self.t, self.seed, "survey"))
        shares = replace(self.algorithm.shares, over="normalised")
        share_I = shares.of(self.runtime.examples(client_I), len(server.members), None)
        gradient_P = self.runtime.gradient(server.shared_P, server.states, client_I, share_I, self.t)
        return None if gradient_P is None else float(gradient_P.norm())


def open_round(
    server: Server, t: int, seed: int, algorithm: Algorithm, runtime: Runtime
) -> tuple[Server, MembershipChanges]:
    """Let those leave and join who do so now; the server for this round, and what to record."""
    membership, events = algorithm.membership, runtime.events(t)
    if not events and membership.drop is None:
        return server, MembershipChanges()
    scene = _Scene(server, t, seed, algorithm, runtime)
    outlook = Outlook(
        t=t,
        origin=server.origin,
        events=events,
        members=server.members,
        roster=server.roster,
        local=algorithm.local,
        share_of=lambda client: float(scene.parts(torch.tensor([client]))[0]),
        old_norm=scene.old_norm,
    )
    silent = frozenset(int(e.client) for e in events if isinstance(e, Leave) and e.silent)
    change = _with_silence(membership.decide(outlook), silent)
    if change.members == server.members and change.roster is server.roster:
        return server, MembershipChanges(change.log, change.extra)
    after, bytes_up = _applied(scene, change, silent)
    return after, MembershipChanges(change.log, change.extra, bytes_up)


def _with_silence(change: Transition, silent: frozenset[int]) -> Transition:
    """The same, with a word in the record about those who have said none."""
    if not silent:
        return change
    log = [e._replace(detail=f"{SILENTLY}: {e.detail}") if e.client in silent and e.kind == "leave" else e
           for e in change.log]  # fmt: skip
    return replace(change, log=tuple(log))


def _farewell(scene: _Scene, clients: Sequence[int], silent: frozenset[int]) -> Departure:
    """What those say who leave and have not vanished."""
    client_I = torch.tensor([client for client in clients if client not in silent], dtype=torch.int64)
    if not len(client_I):
        return Departure(client_I, {}, {})
    return scene.runtime.farewell(client_I, scene.server.outbox)


def _applied(scene: _Scene, change: Transition, silent: frozenset[int]) -> tuple[Server, int]:
    """The server after the change, and the bytes of the farewells: the clock restarts if the objective has shifted.

    Who is excluded sends what terms need to forget it, who stays in the objective what they need to remember it."""
    server, algorithm = scene.server, scene.algorithm
    remembered = any(remembers(term) for term in algorithm.terms)
    farewell = _farewell(scene, change.out, silent)
    staying = _farewell(scene, change.gone if remembered else (), silent)
    left = server.left.plus(staying).among(change.roster.gone_L)
    gone_I = torch.tensor([*change.out, *change.gone], dtype=torch.int64)  # include, too: who has left sends nothing
    clock = replace(server.clock, in_flight=server.clock.in_flight.without(gone_I))
    after = replace(server, left=left, members=change.members, clock=clock)
    if change.out:
        out_I = torch.tensor(change.out)
        scene.runtime.forget(out_I)
        after = replace(
            after,
            mixing=algorithm.mixing.forget(server.mixing, out_I),
            substitution=algorithm.substitution.forget(server.substitution, out_I),
            compression=algorithm.compression.forget(server.compression, out_I),
            outbox=server.outbox.without(out_I),
        )
    roster = change.roster.shifted(server.objective) if change.shifted else change.roster
    after = replace(after, roster=roster, origin=scene.t if change.shifted else server.origin)
    if change.shifted and any(server.down.values()):
        after = replace(after, down=_reformed(scene, after.objective, farewell))
    return after, sum(map(wire_bytes, (*farewell.said.values(), *staying.remembered.values())))


def _reformed(scene: _Scene, objective: Members, farewell: Departure) -> dict[str, Tensors]:
    """What the terms hold for the new objective, given the farewells of those who had something to say."""
    mass = scene.mass(objective)
    ratio = scene.mass(scene.server.objective) / mass if mass else 0.0
    change = ObjectiveChange(scene.parts(farewell.client_H), ratio)
    down = scene.server.down
    return down | {
        term.name: term.on_objective_change(down[term.name], farewell.said.get(term.name, {}), change)
        for term in scene.algorithm.terms
        if isinstance(term, Departures)
    }
