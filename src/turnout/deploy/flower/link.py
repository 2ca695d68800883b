"""How messages reach devices, as a promise; and which link the run at hand has.

A settings object cannot hold a connection, so whoever has one (deploy/server.py, a test) runs the experiment inside
`connected(...)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from turnout.data.description import Description
from turnout.deploy.flower.keys import RegisteredKeys
from turnout.errors import UserError

Parts = dict[str, bytes]


@dataclass(frozen=True)
class Answer:
    """An answer to a message: its parts, or why there are none."""

    message: str  # the id of what it answers
    parts: Parts
    error: str | None = None


class Link(Protocol):
    """Sends bytes to nodes and gets bytes back. A node handles one message at a time."""

    def nodes(self) -> set[int]:
        """Who is connected now."""
        ...

    def send(self, requests: Sequence[tuple[int, Parts]], seconds: float) -> list[str | None]:
        """Send parts to nodes, valid for so many seconds; the id of each message, None where it could not be sent."""
        ...

    def take(self, messages: Sequence[str]) -> list[Answer]:
        """The answers that have come to some messages, each once."""
        ...


@dataclass(frozen=True)
class Connection:
    """A link; what the devices' data must be like (None: like the server's own data); and their registered keys."""

    link: Link
    data: Description | None = None
    keys: RegisteredKeys = field(default_factory=RegisteredKeys)


_current: ContextVar[Connection | None] = ContextVar("connection", default=None)


@contextmanager
def connected(connection: Connection) -> Iterator[None]:
    """Within it, experiments on real devices reach them."""
    token = _current.set(connection)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Connection:
    found = _current.get()
    if found is None:
        raise UserError(
            "runtime 'flower' needs devices to be connected: turnout deploy server runs such an experiment (and "
            "turnout run the replay.toml of its run folder, without devices)"
        )
    return found
