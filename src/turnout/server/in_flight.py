"""Late replies: sent in one round, used in a later one.

A closing that uses late replies (`FirstReplies(late="use")`, `Buffered`) lets clients work on when a round is closed.
Their updates are decoded in the round they belong to (an encoding may depend on it) and kept here with their time of
arrival. A reply that arrives counts like any other, with an age: its client belongs to that round's cohort, and its
cost to that round's record. A client is not asked while its reply is in flight.

Shape letters: L replies in flight, C clients of the cohort, R replies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from turnout.parts.compression.base import Compression, Sending
from turnout.types import Message, Replies, State, Times, Turnout, flatten

DECODED = "decoded"  # the name of updates in messages that were decoded before
_ROWS = ("client_C", "work_C", "progress_C", "full_progress_C")


def updates_of(message: Message, compression: Compression, sending: Sending, like_P: Tensor) -> Tensor:
    """The updates in messages [R, P], decoded now unless that was done when they were sent."""
    update_RP = message.tensors.get(DECODED)
    return compression.decode(message, sending, like_P) if update_RP is None else update_RP


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
