"""One round with real devices: requests, models to those who accept, replies, until the round closes.

    asked ─▶ connected and idle? ─▶ accepted already, or request ─▶ work ─▶ reply, checked
                                                    │
                                      declined, an error, too late: absent

What was seen is the turnout. A reply that comes after the round has closed is late: discarded, or used in the round it
comes in (runtime.late).

Shape letters: C clients of the cohort.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import Tensor

from turnout.deploy.flower.enrolled import Client
from turnout.deploy.flower.link import Parts
from turnout.deploy.flower.mailbox import Heard, Request
from turnout.deploy.flower.messages import question

if TYPE_CHECKING:
    from turnout.deploy.flower.devices import Devices

Done = TypeVar("Done")
MARGIN = 0.3  # of a round's time is left for the way back, after the end of training
POLL = 0.1  # seconds between two looks at what has come


@dataclass(frozen=True)
class Work(Generic[Done]):
    """What a round asks for: the message for a client that has so many seconds, and how its answer is read.

    `read` gives None for a client that did no work, and raises Refused where the answer cannot be used.
    """

    t: int
    parts: Callable[[Client, float], Parts]
    read: Callable[[Client, Heard], Done | None]


class RoundOfWork(Generic[Done]):
    """The exchanges of one round; `late` are replies to earlier ones that have come since."""

    def __init__(self, runtime: Devices, client_C: Tensor, work: Work[Done], late: Mapping[int, Done]):
        self.runtime, self.client_C, self.work, self.t = runtime, client_C, work, work.t
        self.settings, self.enrolled, self.post = runtime.settings, runtime.enrolled, runtime.post
        self.began = time.monotonic()
        self.late = late
        self.done: dict[int, Done] = {}
        self.requested: set[int] = set()
        self.working: set[int] = set()
        self.accepted = 0

    def play(self) -> dict[int, Done]:
        """Who did what."""
        self._use_late()
        self._begin()
        while not self._closed():
            for heard in self.post.collect():
                self._hear(heard)
            time.sleep(POLL)
        return self.done

    def _begin(self) -> None:
        """Work for those who have accepted already, a request to the others who can be reached."""
        free, ready, asking = self.runtime.reachable(), list[Client](), list[Client]()
        for number in self.client_C.tolist():
            client = self.enrolled[number]
            if number in self.done or client.node not in free or client.leaving:
                continue
            (ready if client.accepts else asking).append(client)
        self.runtime.notes.unreachable = len(self.client_C) - len(ready) - len(asking) - len(self.done)
        self._send_work(ready)
        requests = [self._letter(client, "request") for client in asking]
        self.post.send(requests, self.settings.request_seconds)
        self.requested = {client.number for client in asking}

    def _letter(self, client: Client, what: str) -> Request:
        assert client.node is not None
        parts = question(what, client.standing(self.runtime.run), t=self.t)
        return Request(client.node, what, parts, client.number, self.t)

    def _send_work(self, clients: list[Client]) -> None:
        left = self.settings.round_seconds - (time.monotonic() - self.began)
        requests = []
        for client in clients:
            parts = self.work.parts(client, max(left - MARGIN * self.settings.round_seconds, 0.5 * left))
            assert client.node is not None
            requests.append(Request(client.node, "work", parts, client.number, self.t))
            client.accepts, client.asked = False, time.monotonic()
        self.post.send(requests, 2 * self.settings.round_seconds + 60)
        self.working |= {client.number for client in clients}
        self.accepted += len(clients)

    def _closed(self) -> bool:
        passed = time.monotonic() - self.began
        if passed > self.settings.round_seconds:
            return True
        if passed > self.settings.request_seconds:
            self.requested.clear()
        out = {request.client for request, _, _ in self.post.out.values() if request.t == self.t}
        self.working &= out  # a node that has gone answers nothing
        self.requested &= out
        if not self.working and not self.requested:
            return True
        enough = math.ceil(self.settings.close_at * self.accepted)
        return not self.requested and self.accepted > 0 and len(self.done) >= enough

    def _hear(self, heard: Heard) -> None:
        """An answer: of this round, or to something else that was out."""
        request = heard.request
        if request.t != self.t or request.what not in ("request", "work"):
            self.runtime.hear([heard])
            return
        known = self.runtime.know(heard, self.work.read if request.what == "work" else lambda client, heard: None)
        if request.client is not None:
            self.requested.discard(request.client)
            self.working.discard(request.client)
        if known is None:
            return
        client, done = known
        if request.what == "request":
            if client.accepts:
                self._send_work([client])
            else:
                self.runtime.notes.declined.append(f"{client.name}: {heard.head['why']}")
            return
        if done is not None:
            self.done[client.number] = done

    def _use_late(self) -> None:
        """Replies to earlier rounds that have come since: used, where that is wanted and the client is asked now."""
        cohort = set(self.client_C.tolist())
        for number, done in self.late.items():
            if self.settings.late == "use" and number in cohort:
                self.done[number] = done
                self.runtime.notes.late_used += 1
