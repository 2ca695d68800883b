"""Which client a node is: asked once, and believed where its signature, its data and its experiment are right.

A client is its name, bound to one key (keys.py); the node it connects as may change. Its number is its name if that is
a number (data without names numbers its clients), otherwise the next free one.

Shape letters: C clients asked for.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.columns import some
from turnout.data.description import Description, enrolment_of
from turnout.data.federation import Federation, digest
from turnout.deploy.agreement import difference
from turnout.deploy.keys import RegisteredKeys, signed_text
from turnout.deploy.link import Link, Mailbox, Request, current, question
from turnout.deploy.settings import Flower
from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.config.write import to_table
from turnout.runtimes import border
from turnout.runtimes.border import Refused, shown
from turnout.runtimes.remote import NEVER, ClientStanding
from turnout.types import State, Tensors
from turnout.world.enrolment import ClientNames, Enrolment

HELLO_SECONDS = 60.0  # for which the answer to a first question is taken
LOOK = 0.2  # seconds between two looks for a first device
CHECKSUM = 8  # characters of the checksum of a parameter's first values
AGAIN_SECONDS = 3.0  # after which a node that could not introduce itself is asked again


# -- before the first round


def first_enrolment(
    settings: Flower, experiment: Experiment, data_dir: Path | None
) -> tuple[Enrolment, Federation | None]:
    """What is known before the first round: from the server's own data, or from the first device's description."""
    if settings.server_data:
        federation = experiment.world.data.load(experiment.seed, data_dir)
        found = enrolment_of(federation)
        return replace(found, clients=max(settings.clients, found.clients), names=None), federation
    data = current().data
    if data is None:
        raise UserError("no device has described its data yet: set runtime.server_data = true, or connect one")
    target = torch.zeros(2, *data.target_shape, dtype=getattr(torch, data.target_type))
    encoded = tuple(part for part in (data.standardised, data.encoding, data.words or None) if part is not None)
    # what the data of all devices has in common (agreement.py explains differences in words)
    shapes = (data.input_shape, data.input_type, data.target_shape, data.target_type)
    several = (data.inputs,) if data.inputs else ()
    fingerprint = repr((*shapes, data.classes, data.labels, *encoded, *several))

    def examples(client_C: Tensor) -> Tensor:
        raise UserError("a part asks for sample counts before the first round, and devices have not enrolled yet")

    return Enrolment(
        clients=settings.clients, names=None, input_shape=data.input_shape, classes=data.classes, labels=data.labels,
        sample=(data.sample(2), target), groups=None, fingerprint=fingerprint, examples=examples,
        standardised=data.standardised, encoding=data.encoding, words=data.words,
    ), None  # fmt: skip


def first_description(link: Link, keys: RegisteredKeys, most_bytes: int) -> Description:
    """The data description of the first device whose introduction is right; waits for one."""
    mailbox, introductions = Mailbox(link, most_bytes), Introductions(keys)
    if not keys.by_name():
        print("no keys are registered: the first device's description of the data is not verified", file=sys.stderr)
    while True:
        mailbox.send(introductions.questions(link.nodes() - mailbox.busy(), ""), HELLO_SECONDS)
        for delivery in mailbox.collect():
            node, head = delivery.request.node, delivery.answer.head
            if delivery.request.what != "hello":
                continue
            if delivery.failed:
                introductions.postpone(node)
                continue
            try:
                wrong = delivery.wrong or introductions.wrong(node, head, "")
            except Exception as error:  # a stranger may send anything: wait for the next device
                wrong = f"its introduction cannot be used ({type(error).__name__})"
            if wrong is None:
                return border.description(head["data"])
            mailbox.send([introductions.refuse(node, wrong, "")], HELLO_SECONDS)
        time.sleep(LOOK)


def digest_of(experiment: Experiment) -> str:
    """A hash of what server and devices must agree on."""
    table = to_table(experiment)
    algorithm = {name: part for name, part in table["algorithm"].items() if name not in ("membership", "selection")}
    return digest(repr([algorithm, *(table.get(name) for name in ("model", "task", "seed", "start"))]))


# -- introductions


class Introductions:
    """What nodes were asked, and which were refused. A refused node is sent the reason, for the device's own log.

    keys    the registered keys
    data    what the data of all devices must be like; None while only the first description is asked for
    digest  a hash of what else server and devices must agree on; None likewise
    values  a checksum of the first values of each parameter and buffer, by name; None if every client has a model of
            its own
    """

    def __init__(
        self,
        keys: RegisteredKeys,
        data: Description | None = None,
        digest: str | None = None,
        values: Mapping[str, str] | None = None,
    ):
        self.keys, self.data, self.digest, self.values = keys, data, digest, values
        self.refused: set[int] = set()
        self._challenges: dict[int, str] = {}
        self._postponed: dict[int, float] = {}  # nodes that could not answer, and when they may be asked again

    def postpone(self, node: int) -> None:
        """Ask a node that could not answer again, but not at once."""
        self._postponed[node] = time.monotonic() + AGAIN_SECONDS

    def questions(self, nodes: Iterable[int], run: str) -> list[Request]:
        """A question to each node that was not refused, with a text to sign."""
        requests, now = [], time.monotonic()
        for node in (node for node in set(nodes) - self.refused if self._postponed.get(node, now) <= now):
            self._challenges[node] = secrets.token_hex(16)
            parts = question("hello", ClientStanding(run, NEVER), challenge=self._challenges[node])
            requests.append(Request(node, "hello", parts))
        return requests

    def wrong(self, node: int, head: State, run: str) -> str | None:
        """Why an introduction, whose form is right (runtimes/border.py), is not believed; None if it is."""
        text = signed_text(run, self._challenges.get(node, ""), head["name"], head["data"])
        if (wrong := self.keys.wrong(head["name"], head["key"], head["signature"], text)) is not None:
            return wrong
        try:
            data = border.description(head["data"])
        except Refused as refused:
            return str(refused)
        if self.data is not None and (differs := difference(data, self.data)) is not None:
            return differs
        if self.digest is not None and head["digest"] != self.digest:
            return "its experiment is another one (model, algorithm, task or seed differ): give it the server's file"
        return None if self.values is None else other_values(self.values, head.get("values", ""))

    def refuse(self, node: int, why: str, run: str) -> Request:
        """Refuse a node; the message that tells it why."""
        self.refused.add(node)
        print(f"node {node} is refused: {shown(why)}", file=sys.stderr)
        return Request(node, "refused", question("refused", ClientStanding(run, NEVER), why=why))


def other_values(ours: Mapping[str, str], theirs: str) -> str | None:
    """How a device's model, by its checksums one after another, differs from the server's; None if it does not.

    >>> other_values({"base.weight": "00000001", "table": "00000002"}, "0000000500000002")
    "its model begins with other values in base.weight: give it the server's files and the same packages"
    """
    checksums = [theirs[i : i + CHECKSUM] for i in range(0, len(theirs), CHECKSUM)]
    fix = "give it the server's files and the same packages"
    if len(checksums) != len(ours):
        return f"its model has {len(checksums)} parameters and buffers, and the server's {len(ours)}: {fix}"
    names = [name for (name, own), other in zip(ours.items(), checksums, strict=True) if own != other]
    return f"its model begins with other values in {some(names, 3)}: {fix}" if names else None


# -- clients


@dataclass
class Client:
    """A client that has enrolled. The fields from `node` on are not in the checkpoint.

    number    its number
    name      its name
    examples  training samples
    key       its public key
    used      round of its last reply that was used
    durable   the same as of the last checkpoint
    member    whether it has joined and not left
    mine      rows it sent for the terms when it left
    labels    its labels, on the score track
    node      the node it is connected as
    accepts   whether its last answer accepts work in the next round
    declines  whether it declined when it was last asked to work
    holds     round of the model it has
    leaving   whether it has asked to leave
    asked     when it was last sent anything
    lost      whether it has lost its rows, and begins anew
    seen      when it was last connected
    """

    number: int
    name: str
    examples: int
    key: str = ""
    used: int = NEVER
    durable: int = NEVER
    member: bool = False
    mine: Tensors | None = None
    labels: tuple[int, ...] = ()
    node: int | None = None
    accepts: bool = False
    declines: bool = False
    holds: int = NEVER
    leaving: bool = False
    asked: float = field(default_factory=time.monotonic)
    lost: bool = False
    seen: float = field(default_factory=time.monotonic)

    def standing(self, run: str) -> ClientStanding:
        return ClientStanding(run, self.number, self.used, self.durable)


class Enrolled:
    """All clients that have ever enrolled, by number."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.by_number: dict[int, Client] = {}
        self._saved: dict[int, int] = {}

    def __iter__(self) -> Iterator[Client]:
        return iter(self.by_number.values())

    def __getitem__(self, number: int) -> Client:
        return self.by_number[number]

    def at(self, node: int) -> Client | None:
        return next((client for client in self if client.node == node), None)

    def names(self) -> tuple[str, ...]:
        """Names by number; a number without a client is its own name."""
        count = max([self.expected, *(n + 1 for n in self.by_number)])
        return tuple(self.by_number[i].name if i in self.by_number else str(i) for i in range(count))

    def enter(self, name: str, key: str, examples: int, node: int) -> Client | str:
        """Enrol the device at a node: its client, or why it is refused."""
        client = next((one for one in self if one.name == name), None)
        holder = next((one for one in self if key and one.key == key), client)
        if holder is not client and holder is not None:
            return f"its key is bound to the name {holder.name!r}, and it calls itself {name!r}: make a key for each"
        if client is None:
            number = ClientNames(None, self.expected).number(name)
            if number is None or number in self.by_number:
                number = next(i for i in range(len(self.by_number) + 1) if i not in self.by_number)
            client = self.by_number[number] = Client(number, name, examples, key)
        if client.key != key:
            return f"{name} is bound to another key"
        client.node, client.seen = node, time.monotonic()
        return client

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
        """The state that was packed last is on the disk."""
        for number, used in self._saved.items():
            self.by_number[number].durable = used

    def from_state(self, state: State) -> None:
        """Return to a checkpoint; connected clients stay connected."""
        connected = {client.name: client.node for client in self}
        self.by_number = {}
        for number, kept in state.items():
            mine = {name.replace("|", "/"): value for name, value in kept["mine"].items()}
            self.by_number[int(number)] = Client(
                int(number), kept["name"], kept["examples"], kept["key"], kept["used"], kept["used"], kept["member"],
                mine or None, tuple(kept["labels"]), connected.get(kept["name"]),
            )  # fmt: skip
