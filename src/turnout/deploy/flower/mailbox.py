"""Messages that are out, and answers that have come. A node with a message out is left alone.

Of an answer, its size and its head are checked here (runtimes/border.py); its other parts when they are used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from turnout.deploy.flower.link import Answer, Link, Parts
from turnout.deploy.flower.messages import HEAD
from turnout.runtimes import border
from turnout.runtimes.schema import Refused
from turnout.types import State


@dataclass(frozen=True)
class Request:
    """A message on its way to a node: a question about a client (None: who is it?) in a round."""

    node: int
    what: str
    parts: Parts
    client: int | None = None
    t: int = -1


@dataclass(frozen=True)
class Heard:
    """An answer: its head and its other parts, or what was wrong with it."""

    request: Request
    head: State
    parts: Parts
    wrong: str | None = None
    sent: float = 0.0  # when the question was sent, by the monotonic clock
    failed: bool = False  # whether it is the way's fault, not the node's


class Mailbox:
    """What is out, by message id."""

    def __init__(self, link: Link, most_bytes: int):
        self.link, self.most_bytes = link, most_bytes
        self.out: dict[str, tuple[Request, float, float]] = {}

    def busy(self) -> set[int]:
        """Nodes with a message out."""
        return {request.node for request, _, _ in self.out.values()}

    def send(self, requests: Iterable[Request], seconds: float) -> None:
        """Send some letters; an answer is waited for so long, and longer only by those who look later."""
        listed = list(requests)
        if not listed:
            return
        ids = self.link.send([(request.node, request.parts) for request in listed], seconds)
        now = time.monotonic()
        for request, message in zip(listed, ids, strict=True):
            if message is not None:
                bare = Request(request.node, request.what, {}, request.client, request.t)
                self.out[message] = (bare, now, now + seconds)

    def collect(self) -> list[Heard]:
        """The answers that have come since; what can have no answer any more is given up."""
        if not self.out:
            return []
        found = [self._heard(answer) for answer in self.link.take(list(self.out)) if answer.message in self.out]
        self._give_up()
        return found

    def _give_up(self) -> None:
        nodes, now = self.link.nodes(), time.monotonic()
        gone = [i for i, (request, _, until) in self.out.items() if request.node not in nodes or now > until]
        for message in gone:
            del self.out[message]

    def _heard(self, answer: Answer) -> Heard:
        request, sent, _ = self.out.pop(answer.message)
        if answer.error is not None:
            return Heard(request, {}, {}, answer.error, sent, failed=True)
        size = sum(map(len, answer.parts.values()))
        try:
            if size > self.most_bytes:
                raise Refused(f"its answer has {size:,} bytes, more than runtime.most_bytes")
            head = border.head(request.what, answer.parts.get(HEAD))
        except Refused as wrong:
            return Heard(request, {}, {}, str(wrong), sent)
        return Heard(request, head, answer.parts, head.get("error"), sent)
