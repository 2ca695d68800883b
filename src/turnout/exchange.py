"""What crosses between the server, the runtime and the clients, and what a runtime promises.

round.py has the round itself. A runtime maps client work over a cohort and says who turned up; nothing above it knows
whether clients are simulated in this process (runtimes/inprocess.py), live in other processes, or are real devices. All
records here are tensors and plain values, so that they can travel as bytes (runtimes/wire.py).

Shape letters: C clients of the cohort (sorted by id), R replies, I any clients, U clients that have not heard yet, P
shared parameters.
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


def _nobody() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Outbox:
    """What terms have told clients after rounds in which their replies were used, until they have heard it.

    `client_U` (sorted) have not heard yet what was told after round `round_U`, the last they replied in; `said` has
    what that was, by round and term. It travels with a client's next download, and is kept until a later reply of that
    client was used.
    """

    client_U: Tensor = field(default_factory=_nobody)
    round_U: Tensor = field(default_factory=_nobody)
    said: Mapping[int, dict[str, Tensors]] = field(default_factory=dict)

    def among(self, client_C: Tensor) -> Outbox:
        """What some clients have not heard yet."""
        return self._only(torch.isin(self.client_U, client_C)) if len(self.client_U) else self

    def without(self, client_I: Tensor) -> Outbox:
        """After these clients have heard it, or have left for good."""
        return self._only(~torch.isin(self.client_U, client_I)) if len(self.client_U) else self

    def _only(self, keep_U: Tensor) -> Outbox:
        round_U = self.round_U[keep_U]
        rounds = set(round_U.tolist())
        return Outbox(self.client_U[keep_U], round_U, {t: said for t, said in self.said.items() if t in rounds})

    def after(self, t: int, client_R: Tensor, said: dict[str, Tensors]) -> Outbox:
        """One round on: those whose replies were used have heard what came before, and are told this."""
        rest = self.without(client_R)
        if not said:
            return rest
        client_U = torch.cat([rest.client_U, client_R])
        order_U = client_U.argsort()
        round_U = torch.cat([rest.round_U, torch.full_like(client_R, t)])
        return Outbox(client_U[order_U], round_U[order_U], {**rest.said, t: said})

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        return {"client": self.client_U, "round": self.round_U, "said": {str(t): v for t, v in self.said.items()}}

    @classmethod
    def from_state(cls, state: State) -> Outbox:
        return cls(state["client"], state["round"], {int(t): said for t, said in state["said"].items()})


@dataclass(frozen=True)
class RoundTiming:
    """What the server knows of time when a round begins, for runtimes that simulate it.

    now        simulated seconds since the run began
    limit      seconds the round may take; inf: any
    client_F   whose replies are still under way, and
    arrival_F  when each arrives, in seconds since the run began
    seats      asynchronous: how many more clients may be at work, and
    drawn      who is asked before the others; None: all in one order
    owed       bytes that bring clients up to date, given what they hold: of the model and states, without terms
    """

    now: float = 0.0
    limit: float = float("inf")
    client_F: Tensor = field(default_factory=_nobody)
    arrival_F: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    seats: int = 0
    drawn: Tensor | None = None
    owed: Callable[[Tensor, Tensors], Tensor] = lambda client_I, held: torch.zeros(len(client_I))


@dataclass(frozen=True)
class Download:
    """What the server sends to those it asks: the same for all, and a little of each one's own."""

    t: int
    lr: float
    shared_P: Tensor
    states: Tensors
    down: dict[str, Tensors]  # what terms broadcast
    client_C: Tensor
    start_CP: Tensor | None = None  # what each of them starts from, where that is not the shared parameters
    outbox: Outbox = field(default_factory=Outbox)  # what terms told each of them after its last reply
    missed: Callable[[int], Messages | None] = lambda since: None  # for a client that holds the model of round `since`
    timing: RoundTiming = field(default_factory=RoundTiming)

    def start(self, client_R: Tensor) -> Tensor:
        """What some of those asked start from, in whatever order: [P], or a row each."""
        if self.start_CP is None:
            return self.shared_P
        return self.start_CP[torch.searchsorted(self.client_C, client_R).to(self.start_CP.device)]

    def among(self, client_I: Tensor) -> Download:
        """The same for some of those asked (sorted by id)."""
        start_IP = None if self.start_CP is None else self.start(client_I)
        return replace(self, client_C=client_I, start_CP=start_IP, outbox=self.outbox.among(client_I))


@dataclass(frozen=True)
class Limit:
    """A limit that a client finds out about while it trains: it stops before the first step at which `reached` says so.

    `scale` gives what updates are multiplied by after so many steps [R] (None: nothing).
    """

    reached: Callable[[], bool]
    scale: Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Assignment:
    """Local work that counts: who does how many steps, and what each multiplies its update by before sending it.

    In descending order of steps; `scale_R` is None where nobody scales. With a `limit` (on a device only; it does not
    travel) there may be fewer steps, the reply's report says how many ("steps"), and `scale_R` is not used.
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
    """What clients that leave have said: term -> name -> [H, ...], for those who had something to say.

    said        what the terms need to forget them
    remembered  what terms that remember them need to keep
    """

    client_H: Tensor
    said: dict[str, Tensors]
    remembered: dict[str, Tensors]


@dataclass(frozen=True)
class Measure:
    """Which models are to be measured on what.

    central   the one model, on the pooled test data of these members, by name
    common    the one model, on each client's own test data
    own       each client's own model, on its own test data
    """

    t: int
    shared_P: Tensor
    states: Tensors
    client_C: Tensor  # who is measured one by one
    central: Mapping[str, Members] = field(default_factory=dict)
    common: bool = False
    own: bool = False
    start: Callable[[Tensor], Tensor] | None = None  # what own models start from [c, P]; None: the shared parameters
    outbox: Outbox = field(default_factory=Outbox)

    def start_of(self, client_c: Tensor) -> Tensor:
        return self.shared_P.expand(len(client_c), -1) if self.start is None else self.start(client_c)


@dataclass(frozen=True)
class Measured:
    """Values by metric; `noisy_C`: whose training data was spoilt, where that is known."""

    central: dict[str, dict[str, float]] = field(default_factory=dict)
    common: Tensors = field(default_factory=dict)  # metric -> [C]
    own: Tensors = field(default_factory=dict)
    noisy_C: Tensor | None = None


class Simulation(Protocol):
    """What only simulated clients can be asked."""

    @property
    def groups(self) -> Tensor | None:
        """The cluster of each client [N], where the data has clusters."""
        ...

    def would_send(self, client_C: Tensor, download: Download) -> tuple[Tensor, Tensor]:
        """Clients, and the updates they would send after complete work, unscaled and dense. Nothing is kept of it; on a
        GPU the updates of an earlier call or round are overwritten."""
        ...

    def own_model(self, client: int, asked: Measure) -> tuple[Tensor, Tensors]:
        """One client's own model: all columns, and its states."""
        ...


class Runtime(Protocol):
    """Maps client work over a cohort, and says who turned up."""

    @property
    def layout(self) -> Layout: ...

    @property
    def simulation(self) -> Simulation | None:
        """None where clients are real."""
        ...

    def names(self) -> tuple[str, ...] | None:
        """What the clients are called, by number, where that is known: as the data has it, or as they enrolled."""
        ...

    def examples(self, client_C: Tensor) -> Tensor:
        """Training samples of each client, known from its enrolment."""
        ...

    def mean_examples(self, members: Members) -> float:
        """The members' mean sample count, for unbiased shares."""
        ...

    def events(self, t: int) -> Sequence[Event]:
        """Who leaves and joins at the beginning of a round: as the world has it, or as nodes have said."""
        ...

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        """Who answered with how much work, and the replies of those who count (None: there are none).

        Replies come in descending order of steps, equal ones by id: sums are then rounded the same way everywhere. What
        devices send is checked (runtimes/border.py); a reply that cannot be used is an absence.
        """
        ...

    def noted(self) -> Extra:
        """What else the last round's record should say: messages that were refused, replies that came too late."""
        ...

    def unfinished(self, client_I: Tensor, download: Download) -> Replies:
        """Of clients that turned up in this round but whose work does not count: replies without an update, which say
        what their download took ("bytes_down" of terms, and what they held). They keep nothing of the round."""
        ...

    def commit(self, t: int, client_R: Tensor) -> None:
        """The replies of these clients were used: what they kept of round t becomes theirs. Others go back."""
        ...

    def farewell(self, client_I: Tensor, outbox: Outbox) -> Departure:
        """What clients that leave say to the terms; one that kept nothing says nothing. Who vanished is not asked."""
        ...

    def forget(self, client_I: Tensor) -> None:
        """Nothing is kept of these clients any more: one that comes back is new."""
        ...

    def gradient(self, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        """The mean of ∇F_c, by shares, at some weights [P], over those who answer in this round; None: nobody.

        F_c is over all training samples of a client.
        """
        ...

    def measure(self, asked: Measure) -> Measured:
        """Measure models on test data, where there is some."""
        ...

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        """Write what changed since `files` were written; the files that hold everything now."""
        ...

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        """A run begins (no files) or goes on: go back to what these files say. `run` tells this run from others."""
        ...

    def durable(self, t: int) -> None:
        """The checkpoint of round t is on the disk: the run will never go back behind it."""
        ...

    def close(self) -> None:
        """The run has ended, however it ended: let go of processes and connections."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a result may depend on beyond the experiment: device, engine, chunk, threads."""
        ...

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        """Bytes it will need by what for, with so many clients in a round and in all rounds together."""
        ...
