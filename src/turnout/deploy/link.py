"""How messages reach devices: the promise of a link, the link of the current run, and a mailbox on it.

A settings object cannot hold a connection, so the owner of one (server.py, a test) runs the experiment inside
`connected(...)`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from turnout.data.description import Description
from turnout.errors import UserError
from turnout.runtimes import border, wire
from turnout.runtimes.border import Refused
from turnout.runtimes.remote import HEAD, ClientStanding, Parts, RemoteAnswer

if TYPE_CHECKING:
    from turnout.deploy.keys import RegisteredKeys


class Link(Protocol):
    """Sends bytes to nodes and receives bytes. A node handles one message at a time."""

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""
        ...

    def send(self, requests: Sequence[tuple[int, Parts]], seconds: float) -> list[str | None]:
        """Send parts to nodes, valid for so many seconds; the id of each message, None if it could not be sent."""
        ...

    def take(self, messages: Sequence[str]) -> dict[str, Parts | str]:
        """The answers to some messages that have arrived, each once: its parts, or why there are none."""
        ...


@dataclass(frozen=True)
class Connection:
    """What a run on devices needs beside its experiment.

    link  the link to the devices
    data  what the devices' data must be like; None: like the server's own data
    keys  their registered public keys
    """

    link: Link
    data: Description | None
    keys: RegisteredKeys


_current: ContextVar[Connection | None] = ContextVar("connection", default=None)


@contextmanager
def connected(connection: Connection) -> Iterator[None]:
    """Experiments on real devices that run inside this context use the connection."""
    token = _current.set(connection)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Connection:
    """The connection of the run at hand."""
    found = _current.get()
    if found is None:
        raise UserError(
            "runtime 'flower' needs devices to be connected: turnout deploy server runs such an experiment (and "
            "turnout run the replay.toml of its run folder, without devices)"
        )
    return found


# -- messages: the server asks, a device answers
#
#     hello      who are you?                            name, key, sample count, description of the data
#     request    will you work in this round?            yes, or no and why
#     work       train from this model                   the reply, and whether it accepts the next round
#     measure    test these models on your data          metrics, and on how many samples
#     keys, shares, reveal   the other stages of a secure sum (secure.py)
#     gradient   the gradient over your whole data       one vector
#     bye        your leaving is on record               nothing
#     refused    you are not a client of this run: why   nothing
#
# A track may have more. Every question has the client's standing, so that the device can return to those rows; every
# answer says whether the device is about to leave. Parts that are the same for all are the same bytes, so that they are
# stored once on the way.


def question(what: str, standing: ClientStanding, **more: Any) -> Parts:
    """A message that has only a head."""
    return {HEAD: wire.pack({"what": what, **vars(standing), **more})}


@dataclass(frozen=True)
class Request:
    """A message to a node.

    node    the node's number
    what    the kind of question
    parts   the message; empty once it is sent
    client  the client it is about; None before the node has introduced itself
    t       the round it belongs to; -1: none
    """

    node: int
    what: str
    parts: Parts
    client: int | None = None
    t: int = -1


@dataclass(frozen=True)
class Delivery:
    """An answer with its head checked.

    request  what it answers
    answer   its head and parts; both empty if something was wrong with it
    wrong    what was wrong
    failed   whether that is the link's fault, not the node's
    """

    request: Request
    answer: RemoteAnswer
    wrong: str | None = None
    failed: bool = False


class Mailbox:
    """Messages that await an answer, by id. A node with such a message gets no other one.

    The size and the head of an answer are checked here (runtimes/border.py), its other parts when they are used.
    """

    def __init__(self, link: Link, most_bytes: int):
        self.link, self.most_bytes = link, most_bytes
        self._out: dict[str, tuple[Request, float, float]] = {}  # when it was sent, and until when it is answered

    @property
    def out(self) -> list[Request]:
        return [request for request, _, _ in self._out.values()]

    def busy(self) -> set[int]:
        """Nodes that have not answered yet."""
        return {request.node for request in self.out}

    def send(self, requests: Iterable[Request], seconds: float) -> None:
        """Send some requests, each to be answered within so many seconds."""
        listed = list(requests)
        if not listed:
            return
        ids = self.link.send([(request.node, request.parts) for request in listed], seconds)
        now = time.monotonic()
        for request, message in zip(listed, ids, strict=True):
            if message is not None:
                self._out[message] = (replace(request, parts={}), now, now + seconds)

    def adopt(self, what: str, clients: Collection[int], t: int) -> set[int]:
        """Let questions that these clients have not answered yet belong to round t; returns those clients."""
        found = set[int]()
        for message, (request, sent, until) in self._out.items():
            if request.what == what and request.client is not None and request.client in clients:
                self._out[message] = (replace(request, t=t), sent, until)
                found.add(request.client)
        return found

    def forget_others(self, client: int, node: int) -> None:
        """Give up messages to other nodes of a client, which has come back as this one."""
        self._out = {m: out for m, out in self._out.items() if out[0].client != client or out[0].node == node}

    def collect(self) -> list[Delivery]:
        """The answers that have arrived since; messages that can have no answer any more are given up."""
        if not self._out:
            return []
        arrived = self.link.take(list(self._out))
        found = [self._delivery(message, parts) for message, parts in arrived.items() if message in self._out]
        nodes, now = self.link.nodes(), time.monotonic()
        for message, (request, _, until) in list(self._out.items()):
            if request.node not in nodes or now > until:
                del self._out[message]
        return found

    def _delivery(self, message: str, parts: Parts | str) -> Delivery:
        request, sent, _ = self._out.pop(message)
        nothing = RemoteAnswer({}, {}, request.t)
        if isinstance(parts, str):
            return Delivery(request, nothing, parts, failed=True)
        size = sum(map(len, parts.values()))
        try:
            if size > self.most_bytes:
                raise Refused(f"its answer has {size:,} bytes, more than runtime.most_bytes")
            head = border.head(request.what, parts.get(HEAD))
        except Refused as wrong:
            return Delivery(request, nothing, str(wrong))
        found = RemoteAnswer(head, parts, request.t, time.monotonic() - sent)
        return Delivery(request, found, head.get("error"))
