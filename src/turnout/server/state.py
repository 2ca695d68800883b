"""Everything the server carries from round to round (`Server`), and what stays the same in a run (`Context`).

A closing that uses late replies (`FirstReplies(late="use")`, `Buffered`) lets clients work on when a round is closed.
Their updates are decoded in the round they belong to (an encoding may depend on it) and kept in flight with their time
of arrival. A reply that arrives counts like any other, with an age: its client belongs to that round's cohort, and its
cost to that round's record. A client is not asked while its reply is in flight.

Shape letters: P shared parameters, C clients of the cohort, L clients that have left, or replies in flight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from turnout.exchange import Departure, Outbox, Runtime
from turnout.experiment import Algorithm
from turnout.parts.membership.roster import Roster
from turnout.types import Message, Replies, State, Tensors, Times, Turnout, flatten
from turnout.world.members import Members

DECODED = "decoded"  # the name of updates in messages that were decoded before
_ROWS = ("client_C", "work_C", "progress_C", "full_progress_C")


@dataclass(frozen=True)
class Context:
    """What stays the same in every round of a run.

    algorithm  the parts
    runtime    maps client work over a cohort
    seed       addresses every random draw
    until      simulated seconds at which the run ends; inf: it is not limited
    noise_key  addresses the noise of a private run; None: the seed does
    """

    algorithm: Algorithm
    runtime: Runtime
    seed: int
    until: float = math.inf
    noise_key: int | None = None

    @property
    def key(self) -> int:
        """What addresses the noise of a private run."""
        return self.seed if self.noise_key is None else self.noise_key


@dataclass(frozen=True)
class InFlight:
    """Replies in flight.

    replies    the replies, decoded; None: there are none
    turnout    work and times of their clients
    arrival_L  when each arrives, in simulated seconds since the run began
    round_L    the round each belongs to
    """

    replies: Replies | None = None
    turnout: Turnout | None = None
    arrival_L: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    round_L: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @cached_property
    def client_L(self) -> Tensor:
        return torch.empty(0, dtype=torch.int64) if self.replies is None else self.replies.client_R

    def take(self, keep_L: Tensor) -> InFlight:
        """Some of them, by a mask."""
        if self.replies is None or self.turnout is None or bool(keep_L.all()):
            return self
        rows = keep_L.nonzero().squeeze(1)
        if not len(rows):
            return InFlight()
        return InFlight(self.replies.take(rows), self.turnout.take(rows), self.arrival_L[rows], self.round_L[rows])

    def without(self, client_I: Tensor) -> InFlight:
        """Without the replies of clients that left."""
        return self.take(~torch.isin(self.client_L, client_I))

    def plus(self, other: InFlight) -> InFlight:
        """These and others; no client is in both."""
        if self.replies is None or self.turnout is None:
            return other
        if other.replies is None or other.turnout is None:
            return self
        both: dict[str, Any] = {
            name: torch.cat([getattr(self.turnout, name), getattr(other.turnout, name)]) for name in _ROWS
        }
        first, second = self.turnout.times, other.turnout.times
        times = None if first is None or second is None else first.join(second)
        return InFlight(
            Replies.join([self.replies, other.replies]),
            replace(self.turnout, **both, times=times),
            torch.cat([self.arrival_L, other.arrival_L]),
            torch.cat([self.round_L, other.round_L]),
        )

    def to(self, like: Tensor) -> InFlight:
        """The same on the device of the model: a checkpoint is read into main memory."""
        if self.replies is None or self.replies.message.tensors[DECODED].device == like.device:
            return self
        message = Message({DECODED: self.replies.message.tensors[DECODED].to(like)}, self.replies.message.bytes_C)
        states = {name: value.to(like.device) for name, value in self.replies.states.items()}
        return replace(self, replies=replace(self.replies, message=message, states=states))

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        if self.replies is None or self.turnout is None or self.turnout.times is None:
            return {}
        message, times = self.replies.message, self.turnout.times
        return {
            "update": message.tensors[DECODED],
            "bytes": message.bytes_C,
            "states": self.replies.states,
            "report": self.replies.report,
            "turnout": {name: getattr(self.turnout, name) for name in _ROWS},
            "full_work": self.turnout.full_work,
            "times": times.columns(),
            "tiers": list(times.tiers),
            "arrival": self.arrival_L,
            "round": self.round_L,
        }

    @classmethod
    def from_state(cls, state: State) -> InFlight:
        if not state:
            return cls()
        times = Times(**state["times"], closes=0.0, tiers=tuple(state["tiers"]))
        turnout = Turnout(**state["turnout"], full_work=state["full_work"], times=times)
        message = Message({DECODED: state["update"]}, state["bytes"])
        states, report = flatten(state["states"])[0], flatten(state["report"])[0]
        replies = Replies(turnout.client_C, message, states, report=report)
        return cls(replies, turnout, state["arrival"], state["round"])


@dataclass(frozen=True)
class ServerTime:
    """Simulated time on the server.

    now        seconds since the run began
    in_flight  late replies that arrive in a later round
    """

    now: float = 0.0
    in_flight: InFlight = field(default_factory=InFlight)

    def to_state(self) -> State:
        return {"now": self.now, "in_flight": self.in_flight.to_state()}

    @classmethod
    def from_state(cls, state: State) -> ServerTime:
        return cls(state["now"], InFlight.from_state(state["in_flight"]))


@dataclass(frozen=True)
class Left:
    """What terms remember of clients that left but stay in the objective.

    client_L  the clients, sorted
    rows      what each sent when it left: term -> name -> [L, ...]
    """

    client_L: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    rows: dict[str, Tensors] = field(default_factory=dict)

    def plus(self, departure: Departure) -> Left:
        """With clients that leave now."""
        if not len(departure.client_H) or not departure.to_remember:
            return self
        client_L = torch.cat([self.client_L, departure.client_H])
        order_L = client_L.argsort()
        rows = {
            term: {name: torch.cat([self._known(term, name, value), value])[order_L] for name, value in new.items()}
            for term, new in departure.to_remember.items()
        }
        return Left(client_L[order_L], rows)

    def _known(self, term: str, name: str, like: Tensor) -> Tensor:
        return self.rows[term][name].to(like) if term in self.rows else like[:0]

    def among(self, client_I: Tensor) -> Left:
        """Only those of these clients."""
        keep_L = torch.isin(self.client_L, client_I)
        if bool(keep_L.all()):
            return self
        rows = {term: {n: v[keep_L.to(v.device)] for n, v in rows.items()} for term, rows in self.rows.items()}
        return Left(self.client_L[keep_L], rows)


@dataclass(frozen=True)
class Server:
    """Everything the server carries from round to round.

    shared_P      the shared parameters
    states        averages beside them: BatchNorm statistics, "moment/...", "personal/..." where shared
    term_states   server state of each term
    members       enrolled clients
    mixing, substitution, compression, step, selection, privacy  state of those parts (`step`: of `algorithm.server`)
    roster        what the membership policy remembers of clients
    outbox        messages from terms to clients that are still to be delivered
    left          what terms remember of clients that left but stay in the objective
    origin        round in which the objective last shifted: the schedule's clock starts there
    time          simulated time, and replies in flight
    """

    shared_P: Tensor
    states: Tensors
    term_states: dict[str, Tensors]
    members: Members
    mixing: State = field(default_factory=dict)
    substitution: State = field(default_factory=dict)
    compression: State = field(default_factory=dict)
    step: State = field(default_factory=dict)
    selection: State = field(default_factory=dict)
    privacy: State = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    outbox: Outbox = field(default_factory=Outbox)
    left: Left = field(default_factory=Left)
    origin: int = 0
    time: ServerTime = field(default_factory=ServerTime)

    @property
    def objective(self) -> Members:
        """Clients of the objective: the members, and clients that left but stay in it."""
        gone_L = self.roster.gone_L
        return self.members.plus(gone_L) if len(gone_L) else self.members

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        names = (
            "shared_P",
            "states",
            "term_states",
            "mixing",
            "substitution",
            "compression",
            "step",
            "selection",
            "privacy",
            "origin",
        )
        plain = {name: getattr(self, name) for name in names}
        typed = {name: getattr(self, name).to_state() for name in ("members", "roster", "outbox", "time")}
        return plain | typed | {"left": {"client": self.left.client_L, "rows": self.left.rows}}

    @classmethod
    def from_state(cls, state: State) -> Server:
        typed = {
            "states": flatten(state["states"])[0],  # "moment/first" is one name here, not a branch of the tree
            "members": Members.from_state(state["members"]),
            "roster": Roster.from_state(state["roster"]),
            "outbox": Outbox.from_state(state["outbox"]),
            "time": ServerTime.from_state(state["time"]),
            "left": Left(state["left"]["client"], state["left"]["rows"]),
        }
        return cls(**state | typed)
