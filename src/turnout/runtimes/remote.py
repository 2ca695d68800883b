"""Clients on real devices as a track sees them: tasks for devices on the server's side, and the device's own side.

The satellite `deploy` gives the server's half of a track its `RemoteClients`, and runs the track's `ClientTasks` on
every device. A track needs neither that satellite nor Flower to say what its devices do.

Shape letters: C clients asked for, I any clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from turnout.experiment import Experiment
from turnout.types import Extra, State, Tensors
from turnout.world.events import Event

Parts = dict[str, bytes]  # a message: parts by name, each a packed tree (wire.py)
HEAD, COMMON, OWN, REPLY = "head", "common", "own", "reply"  # plain values; the same for all; one client's; its reply
NEVER = -1  # in place of a round: no reply of the client was ever used
Found = TypeVar("Found")


@dataclass(frozen=True)
class ClientStanding:
    """Where a client stands with the server. A device returns to the rows of its last reply that was used.

    run      the run's own name; devices keep rows by it
    client   the client's number
    used     round of its last reply that was used
    durable  the same as of the last checkpoint: the server never goes back further
    """

    run: str
    client: int
    used: int = NEVER
    durable: int = NEVER

    @classmethod
    def of(cls, head: State) -> ClientStanding:
        """The standing in a question's head."""
        return cls(head["run"], head["client"], head["used"], head["durable"])


@dataclass(frozen=True)
class RemoteAnswer:
    """A device's answer to a task.

    head     its plain values, checked (border.py)
    parts    all parts of the message, unchecked
    t        the round of the task
    seconds  between sending the task and receiving the answer
    """

    head: State
    parts: Parts
    t: int = -1
    seconds: float = 0.0


@dataclass(frozen=True)
class DeviceTask(Generic[Found]):
    """A task for devices.

    what     its kind, one of the track's `ClientTasks.tasks`
    message  what a client is sent, by its number and the seconds it has: more plain values for the head, and parts
    read     what an answer with a reply gives, by the client's number; raises `Refused` if it cannot be used
    t        the round it belongs to
    """

    what: str
    message: Callable[[int, float], tuple[State, Parts]]
    read: Callable[[int, RemoteAnswer], Found]
    t: int = -1


class RemoteClients(Protocol):
    """Real clients: who they are, who joins and leaves, and what they are asked."""

    def names(self) -> tuple[str, ...]: ...

    def examples(self, client_C: Tensor) -> Tensor: ...

    def labels(self, client: int) -> tuple[int, ...]:
        """The labels that a client enrolled with."""
        ...

    def events(self, t: int) -> Sequence[Event]: ...

    def noted(self) -> Extra: ...

    def work(self, client_C: Tensor, task: DeviceTask[Found]) -> dict[int, Found]:
        """Play one round of work; what each client did, by number."""
        ...

    def survey(self, client_C: Tensor, task: DeviceTask[Found]) -> dict[int, Found]:
        """Ask some clients, and wait for those that answer in time."""
        ...

    def mark_used(self, client_I: Tensor, t: int) -> None:
        """The replies of these clients to round t were used (NEVER: forget that any was)."""
        ...

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]: ...

    def load(self, run: str, folder: Path, files: list[str]) -> None: ...

    def durable(self, t: int) -> None: ...

    def close(self) -> None: ...


DoTask = Callable[[State, ClientStanding, Parts], tuple[State, State | None]]


class ClientTasks(Protocol):
    """What one client does on its device for its track."""

    @property
    def experiment(self) -> Experiment:
        """The experiment as prepared: server and devices compare it."""
        ...

    @property
    def values(self) -> str:
        """Checksums of the model's first values, one after another; empty if every client has a model of its own."""
        ...

    @property
    def tasks(self) -> Mapping[str, DoTask]:
        """By kind: does a task from its head and parts; more plain values for the answer's head, and the reply."""
        ...

    def introduction(self) -> State:
        """What the server must know of the client's data: `examples`, and `labels` where the track has them."""
        ...

    def settle(self, standing: ClientStanding) -> bool:
        """Return to the rows of the last reply that was used; False if they are lost."""
        ...

    def holds(self, standing: ClientStanding) -> int:
        """The round of the model on the device, or NEVER."""
        ...

    def leaving_rows(self, standing: ClientStanding) -> Tensors | None:
        """What the server needs to forget or remember a client that leaves; None: nothing."""
        ...
