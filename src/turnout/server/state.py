"""Everything the server carries from round to round.

Shape letters: P shared parameters, C clients of the cohort, L clients that have left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.exchange import Departure, Outbox
from turnout.parts.membership.roster import Roster
from turnout.server.in_flight import ServerTime
from turnout.types import State, Tensors, flatten
from turnout.world.members import Members


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
    mixing, substitution, compression, step, selection  state of those parts (`step`: of `algorithm.server`)
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
