"""Who the clients are: names, keys and sample counts as they enrolled, and which reply of each was used last.

A client is its name, bound to one key (keys.py); the node it comes as may change. Its number is its name where
that is a number (data without names numbers its clients), else the next one that is free.

Shape letters: C clients asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turnout.data.description import Description
from turnout.data.enrolling import enrolment_of
from turnout.data.federation import Federation
from turnout.deploy.flower.link import current
from turnout.deploy.flower.messages import NEVER, Standing
from turnout.errors import UserError
from turnout.types import State, Tensors
from turnout.world.enrolment import Enrolment

if TYPE_CHECKING:
    from turnout.deploy.flower.settings import Flower
    from turnout.experiment import Experiment


def first_enrolment(
    settings: Flower, experiment: Experiment, data_dir: Path | None
) -> tuple[Enrolment, Federation | None]:
    """What is known before the first round: from the server's own data, or as the first device describes its own."""
    if settings.server_data:
        federation = experiment.world.data.load(experiment.seed, data_dir)
        found = enrolment_of(federation)
        return replace(found, clients=max(settings.clients, found.clients), names=None), federation
    data = current().data
    if data is None:
        raise UserError("no device has said what its data is like: set runtime.server_data = true, or connect one")
    return enrolment_like(data, settings.clients), None


def enrolment_like(data: Description, clients: int) -> Enrolment:
    """The enrolment of clients whose data is as described."""
    target = torch.zeros(2, *data.target_shape, dtype=getattr(torch, data.target_type))

    def examples(client_C: Tensor) -> Tensor:
        raise UserError("a part asks for sample counts before the first round, and devices have not enrolled yet")

    return Enrolment(
        clients=clients, names=None, input_shape=data.input_shape, classes=data.classes, labels=data.labels,
        sample=(data.sample(2), target), groups=None, fingerprint=likeness(data), examples=examples,
        standardised=data.standardised, encoding=data.encoding, words=data.words,
    )  # fmt: skip


def likeness(data: Description) -> str:
    """What the data of all devices must have in common (data/agreement.py says in words where it differs)."""
    encoded = tuple(part for part in (data.standardised, data.encoding, data.words or None) if part is not None)
    shapes = (data.input_shape, data.input_type, data.target_shape, data.target_type)
    return repr((*shapes, data.classes, data.labels, *encoded))


@dataclass
class Client:
    """A client that has enrolled."""

    number: int
    name: str
    examples: int
    key: str = ""
    used: int = NEVER  # the round of its last reply that was used
    durable: int = NEVER  # the same, as of the last checkpoint
    member: bool = False  # whether its joining was announced, and not its leaving
    mine: Tensors | None = None  # what it sent with its leaving, for the terms
    labels: tuple[int, ...] = ()  # of the score track
    # from here on not in the checkpoint
    node: int | None = None
    accepts: bool = False  # whether it has said that it takes work in the next round
    declines: bool = False  # whether it said no when it was last asked to work
    holds: int = NEVER  # the round of the model it has
    leaving: bool = False  # it has said goodbye
    asked: float = field(default_factory=time.monotonic)  # when it was last sent anything
    lost: bool = False  # it has lost its rows, and begins anew
    seen: float = field(default_factory=time.monotonic)

    def standing(self, run: str) -> Standing:
        return Standing(run, self.number, self.used, self.durable)


class Enrolled:
    """All clients that have ever enrolled, by number."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.by_number: dict[int, Client] = {}
        self._saved: dict[int, int] = {}

    def __iter__(self) -> Any:
        return iter(self.by_number.values())

    def __getitem__(self, number: int) -> Client:
        return self.by_number[number]

    def named(self, name: str) -> Client | None:
        return next((client for client in self if client.name == name), None)

    def at(self, node: int) -> Client | None:
        return next((client for client in self if client.node == node), None)

    def members(self) -> list[Client]:
        return [client for client in self if client.member]

    def examples(self, client_C: Tensor) -> Tensor:
        return torch.tensor([self.by_number[c].examples for c in client_C.tolist()], dtype=torch.int64)

    def names(self) -> tuple[str, ...]:
        """By number; a number that nobody has yet stands for itself."""
        count = max([self.expected, *(n + 1 for n in self.by_number)])
        return tuple(self.by_number[i].name if i in self.by_number else str(i) for i in range(count))

    def enter(self, name: str, key: str, examples: int, node: int) -> Client | str:
        """A device says who it is: the client, or why it is refused."""
        client = self.named(name)
        holder = next((one for one in self if key and one.key == key), client)
        if holder is not client and holder is not None:
            return f"its key is bound to the name {holder.name!r}, and it calls itself {name!r}: make a key for each"
        if client is None:
            client = Client(self._number(name), name, examples, key)
            self.by_number[client.number] = client
        if client.key != key:
            return f"{name} is bound to another key"
        client.node, client.seen = node, time.monotonic()
        return client

    def _number(self, name: str) -> int:
        if name.isdecimal() and int(name) < self.expected and int(name) not in self.by_number:
            return int(name)
        free = (i for i in range(len(self.by_number) + self.expected + 1) if i not in self.by_number)
        return next(free)

    # -- the checkpoint

    def to_state(self) -> State:
        self._saved = {client.number: client.used for client in self}
        return {
            str(c.number): {
                "name": c.name, "examples": c.examples, "key": c.key, "used": c.used, "member": c.member,
                "labels": list(c.labels),
                "mine": {name.replace("/", "|"): value for name, value in (c.mine or {}).items()},
            }
            for c in self
        }  # fmt: skip

    def durable(self) -> None:
        """What was saved last is on the disk."""
        for number, used in self._saved.items():
            self.by_number[number].durable = used

    def from_state(self, state: State) -> None:
        """Go back to a checkpoint; who is connected now stays so."""
        connected = {client.name: client.node for client in self}
        self.by_number = {}
        for number, kept in state.items():
            mine = {name.replace("|", "/"): value for name, value in kept["mine"].items()}
            self.by_number[int(number)] = Client(
                int(number), kept["name"], kept["examples"], kept["key"], kept["used"], kept["used"], kept["member"],
                mine or None, tuple(kept["labels"]), connected.get(kept["name"]),
            )  # fmt: skip
