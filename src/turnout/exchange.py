"""What crosses between server, runtime and clients, and the interface of a runtime.

A runtime maps client work over a cohort and returns who turned up. The round (round.py) does not know whether clients
are simulated in this process (runtimes/inprocess.py), live in other processes, or are real devices. Records here hold
tensors and plain values, so that they can travel as bytes (runtimes/wire.py).

Shape letters: C clients of the cohort (sorted by id), R replies, I any clients, U clients with undelivered messages, H
clients that leave, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from turnout.layout import Layout
from turnout.types import Extra, Replies, State, Tensors, Turnout
from turnout.world.enrolment import Enrolment as Enrolment
from turnout.world.events import Event
from turnout.world.members import Members

Messages = list[tuple[int, bytes]]  # encoded changes of the model in order, each with the round it was sent in
OWN = "personal/"  # prefix of personal layers among the states, where they are shared: "personal/<name>"


def states_to_send(states: Tensors, newcomers: str) -> Tensors:
    """The server's states that clients download: averages of personal layers only if newcomers start from them."""
    return states if newcomers == "average" else {n: v for n, v in states.items() if not n.startswith(OWN)}


def _no_clients() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Outbox:
    """Messages from terms to clients that are still to be delivered.

    A message is written after a round for the clients whose replies were used. It travels with a client's next download
    and is kept until a later reply of that client is used.

    client_U  clients with an undelivered message, sorted
    round_U   the round after which it was written
    messages  the messages: round -> term -> name -> tensor
    """

    client_U: Tensor = field(default_factory=_no_clients)
    round_U: Tensor = field(default_factory=_no_clients)
    messages: Mapping[int, dict[str, Tensors]] = field(default_factory=dict)

    def among(self, client_C: Tensor) -> Outbox:
        """The messages for some clients."""
        return self._only(torch.isin(self.client_U, client_C)) if len(self.client_U) else self

    def without(self, client_I: Tensor) -> Outbox:
        """Without messages for these clients, which have them or have left for good."""
        return self._only(~torch.isin(self.client_U, client_I)) if len(self.client_U) else self

    def _only(self, keep_U: Tensor) -> Outbox:
        round_U = self.round_U[keep_U]
        rounds = set(round_U.tolist())
        return Outbox(self.client_U[keep_U], round_U, {t: m for t, m in self.messages.items() if t in rounds})

    def after(self, t: int, client_R: Tensor, message: dict[str, Tensors]) -> Outbox:
        """The outbox after round t: clients whose replies were used have the earlier message, and get this one."""
        if not message and not self.messages:
            return self
        rest = self.without(client_R)
        if not message:
            return rest
        client_U = torch.cat([rest.client_U, client_R])
        order_U = client_U.argsort()
        round_U = torch.cat([rest.round_U, torch.full_like(client_R, t)])
        return Outbox(client_U[order_U], round_U[order_U], {**rest.messages, t: message})

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        return {
            "client": self.client_U,
            "round": self.round_U,
            "messages": {str(t): v for t, v in self.messages.items()},
        }

    @classmethod
    def from_state(cls, state: State) -> Outbox:
        return cls(state["client"], state["round"], {int(t): message for t, message in state["messages"].items()})


@dataclass(frozen=True)
class RoundTiming:
    """Time on the server when a round begins, for runtimes that simulate it.

    now        simulated seconds since the run began
    limit      seconds the round may take; inf: any
    client_F   clients whose replies are still in flight
    arrival_F  when each arrives, in seconds since the run began
    seats      asynchronous: number of clients that may start working
    drawn      asynchronous: clients that are asked before the others; None: all in one order
    """

    now: float = 0.0
    limit: float = float("inf")
    client_F: Tensor = field(default_factory=_no_clients)
    arrival_F: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    seats: int = 0
    drawn: Tensor | None = None


@dataclass(frozen=True)
class Download:
    """What the server sends to the clients it asks: the same for all, and a little for each.

    t         round
    lr        learning rate
    shared_P  shared parameters
    states    states beside them
    term_states  server state that terms broadcast: term -> name -> tensor
    client_C  the clients it is for
    start_CP  what each starts from, where that is not the shared parameters
    outbox    messages from terms to some of them
    missed    encoded changes for a client that holds the model of a round; None: it needs all of it
    owed      bytes that bring clients up to date, given what they hold: model and states, without terms
    timing    time on the server
    """

    t: int
    lr: float
    shared_P: Tensor
    states: Tensors
    term_states: dict[str, Tensors]
    client_C: Tensor
    start_CP: Tensor | None = None
    outbox: Outbox = field(default_factory=Outbox)
    missed: Callable[[int], Messages | None] = lambda since: None
    owed: Callable[[Tensor, Tensors], Tensor] = lambda client_I, held: torch.zeros(len(client_I))
    timing: Callable[[], RoundTiming] = RoundTiming

    def start(self, client_R: Tensor) -> Tensor:
        """What some of the clients start from, in any order: [P], or a row each."""
        if self.start_CP is None:
            return self.shared_P
        return self.start_CP[torch.searchsorted(self.client_C, client_R).to(self.start_CP.device)]

    def among(self, client_I: Tensor) -> Download:
        """The same for some of the clients (sorted by id)."""
        start_IP = None if self.start_CP is None else self.start(client_I)
        return replace(self, client_C=client_I, start_CP=start_IP, outbox=self.outbox.among(client_I))


@dataclass(frozen=True)
class Limit:
    """A limit that a client meets while it trains.

    reached  whether to stop before the next step
    scale    factor of the update after so many steps [R]; None: none
    """

    reached: Callable[[], bool]
    scale: Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Assignment:
    """Local work that counts, in descending order of steps.

    client_R  the clients
    steps_R   their local steps
    scale_R   factor each applies to its update before sending it; None: none
    limit     stops a device early (it does not travel): the report then has the "steps", and `scale_R` is not used
    """

    client_R: Tensor
    steps_R: Tensor
    scale_R: Tensor | None = None
    limit: Limit | None = None

    def take(self, rows: Tensor) -> Assignment:
        """Some of it."""
        scale_r = None if self.scale_R is None else self.scale_R[rows]
        return Assignment(self.client_R[rows], self.steps_R[rows], scale_r)


@dataclass(frozen=True)
class Departure:
    """What clients send when they leave: term -> name -> [H, ...].

    client_H     clients that leave and had kept something
    to_forget    what terms need to forget them
    to_remember  what terms that remember them need to keep
    """

    client_H: Tensor
    to_forget: dict[str, Tensors]
    to_remember: dict[str, Tensors]


@dataclass(frozen=True)
class Measure:
    """Which models to measure on which data.

    t         round
    shared_P  shared parameters
    states    states beside them
    client_C  clients that are measured one by one
    central   the global model, on the pooled test data of these members, by name
    common    the global model, on each client's own test data
    own       each client's own model, on its own test data
    start     what own models start from [c, P]; None: the shared parameters
    outbox    messages from terms to clients
    """

    t: int
    shared_P: Tensor
    states: Tensors
    client_C: Tensor
    central: Mapping[str, Members] = field(default_factory=dict)
    common: bool = False
    own: bool = False
    start: Callable[[Tensor], Tensor] | None = None
    outbox: Outbox = field(default_factory=Outbox)

    def start_of(self, client_c: Tensor) -> Tensor:
        return self.shared_P.expand(len(client_c), -1) if self.start is None else self.start(client_c)


@dataclass(frozen=True)
class Measured:
    """Measured values.

    central  of the global model: name of the members -> metric -> value
    common   of the global model on each client's data: metric -> [C]
    own      of each client's own model: metric -> [C]
    noisy_C  clients whose training data was spoilt, where that is known
    """

    central: dict[str, dict[str, float]] = field(default_factory=dict)
    common: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)
    noisy_C: Tensor | None = None


class Simulation(Protocol):
    """Questions that only simulated clients can answer."""

    @property
    def groups(self) -> Tensor | None:
        """The cluster of each client [N], where the data has clusters."""
        ...

    def would_send(self, client_C: Tensor, download: Download) -> tuple[Tensor, Tensor]:
        """Clients, and the updates they would send after complete work, unscaled and dense.

        Nothing of it is kept. On a GPU it overwrites the updates of an earlier call or round."""
        ...

    def own_model(self, client: int, asked: Measure) -> tuple[Tensor, Tensors]:
        """One client's own model: all columns, and its states."""
        ...


class ClientKeeper(Protocol):
    """A runtime of any track, as far as it knows clients and keeps their state."""

    def names(self) -> tuple[str, ...] | None:
        """Names of the clients by number, from the data or from their enrolment; None: they have none."""

    def examples(self, client_C: Tensor) -> Tensor:
        """Training samples of each client, as enrolled."""

    def events(self, t: int) -> Sequence[Event]:
        """Joins and leaves at the beginning of a round."""

    def noted(self) -> Extra:
        """Further entries for the last round's record: refused messages, replies that came too late."""

    def forget(self, client_I: Tensor) -> None:
        """Delete the state of these clients: one that comes back is new."""

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        """Write what changed since `files` were written; returns the files that now hold everything."""

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        """Begin a run (no files), or restore what these files hold. `run` identifies the run."""

    def durable(self, t: int) -> None:
        """The checkpoint of round t is on disk: the run will not resume from an earlier one."""

    def close(self) -> None:
        """Release processes and connections: the run has ended."""

    def describe(self) -> dict[str, Any]:
        """What results may depend on beyond the experiment: device, engine, chunk, threads."""

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        """Bytes it will need, by purpose, with so many clients in a round and in all rounds together."""


class Runtime(ClientKeeper, Protocol):
    """Maps client work over a cohort and returns who turned up."""

    @property
    def layout(self) -> Layout: ...

    @property
    def simulation(self) -> Simulation | None:
        """None where clients are real."""
        ...

    def mean_examples(self, members: Members) -> float:
        """The members' mean sample count, for unbiased shares."""
        ...

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        """Who turned up with how much work, and the replies of clients whose work counts (None: there are none).

        Replies are in descending order of steps, equal ones by id, so that sums round the same way everywhere. Replies
        of devices are checked (runtimes/border.py); one that cannot be used counts as an absence.
        """
        ...

    def unfinished(self, client_I: Tensor, download: Download) -> Replies:
        """Replies without an update, of clients that turned up but whose work does not count.

        They report what their download took ("bytes_down" of terms, and the model they held)."""
        ...

    def commit(self, t: int, client_R: Tensor) -> None:
        """These clients keep their new state: their replies were used, or are late. The others keep their old one."""
        ...

    def depart(self, client_I: Tensor, outbox: Outbox) -> Departure:
        """What clients that leave send to the terms; a client that kept nothing sends nothing."""
        ...

    def gradient(self, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        """Mean of ∇F_c by shares at some weights [P], over the clients that answer in this round; None: none does.

        F_c is over all training samples of a client.
        """
        ...

    def measure(self, asked: Measure) -> Measured:
        """Measure models on test data."""
        ...
