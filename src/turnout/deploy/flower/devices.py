"""Clients that are real: who they are, who comes and goes, what they are asked, whatever is federated.

A runtime of the weight track (runtime.py) or of the score track (tracks/scores/devices.py) is made of it.

Shape letters: C clients asked for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from turnout.clients.store import ENROLLED
from turnout.data.enrolling import described, enrolment_of
from turnout.data.federation import Federation
from turnout.deploy.flower.enrolled import Client, Enrolled
from turnout.deploy.flower.introductions import HELLO_SECONDS, Introductions
from turnout.deploy.flower.link import Parts, current
from turnout.deploy.flower.mailbox import Heard, Mailbox, Request
from turnout.deploy.flower.messages import NEVER, REPLY, question
from turnout.deploy.flower.notes import Notes
from turnout.deploy.flower.settings import Flower
from turnout.deploy.flower.work import POLL
from turnout.runtimes import wire
from turnout.runtimes.schema import Refused
from turnout.types import Extra, Tensors
from turnout.world.events import Event, Join, Leave

CHECK_IN_SECONDS = 30.0  # after which somebody who was not asked is asked how it is
CLOSE_SECONDS = 5.0  # for which a run that ends waits until those who have left have heard it

Found = TypeVar("Found")
Read = Callable[[Client, Heard], Found]  # what an answer brings; Refused where it cannot be used


class Devices:
    """Real clients. `run` is this run's own mark; devices keep their rows by it."""

    def __init__(
        self, settings: Flower, mark: str, federation: Federation | None, values: Mapping[str, str] | None = None
    ):
        connection = current()
        data = connection.data if federation is None else described(enrolment_of(federation), "")
        assert data is not None, "a server without data begins once it has a description (first_enrolment)"
        self.settings, self.data = settings, data
        self.introductions = Introductions(connection.keys, data, mark, values)
        self.enrolled = Enrolled(settings.clients)
        self.link, self.post = connection.link, Mailbox(connection.link, settings.most_bytes)
        self.run, self.notes = "", Notes()

    def late_reply(self, client: Client, heard: Heard) -> None:
        """A reply to work of a round that has closed."""

    def rows_of(self, heard: Heard) -> Tensors | None:
        """The rows that a client which leaves has sent; None: it has sent none."""
        return None

    def wrong_introduction(self, node: int, head: dict[str, Any]) -> str | None:
        return self.introductions.wrong(node, head, self.run)

    def names(self) -> tuple[str, ...]:
        return self.enrolled.names()

    def examples(self, client_C: Tensor) -> Tensor:
        return self.enrolled.examples(client_C)

    def noted(self) -> Extra:
        said, self.notes = self.notes.extra(), Notes()
        return said

    # -- who is there

    def events(self, t: int) -> Sequence[Event]:
        """Who has enrolled or said goodbye since, or was not seen for too long; waits until enough are there."""
        self._greet()
        self._check_in()
        self.hear(self.post.collect())
        self._await(t)
        now, patience, connected = time.monotonic(), self.settings.vanish_after, self.link.nodes()
        leaves, joins = list[Event](), list[Event]()
        for client in sorted(self.enrolled, key=lambda client: client.number):
            if client.node in connected:
                client.seen = now
            vanished = patience > 0 and now - client.seen > patience
            if client.member and (client.leaving or client.lost or vanished):
                leaves.append(Leave(client.number, t, silent=not client.leaving))
                client.member = False
            elif not client.member and client.node in connected and not client.leaving:
                client.member, client.lost, client.mine = True, False, None
                client.used = client.durable = NEVER
                joins.append(Join(client.number, t))
        return [*leaves, *joins]

    def _greet(self) -> None:
        """Ask who they are of nodes that are not known; one that was refused may come again."""
        self.introductions.strangers &= self.link.nodes()
        known = {client.node for client in self.enrolled} | self.post.busy()
        self.post.send(self.introductions.asked_of(self.link.nodes() - known, self.run), HELLO_SECONDS)

    def _check_in(self) -> None:
        """Ask those who have not been asked for a while how they are: one may want to leave."""
        free, now, requests = self.reachable(), time.monotonic(), []
        for client in self.enrolled.members():
            if client.node is not None and client.node in free and now - client.asked > CHECK_IN_SECONDS:
                client.asked = now
                parts = question("request", client.standing(self.run), t=-2)
                requests.append(Request(client.node, "request", parts, client.number, -2))
        self.post.send(requests, HELLO_SECONDS)

    def reachable(self) -> set[int]:
        """Nodes that are connected and have no message out."""
        return self.link.nodes() - self.post.busy()

    def _await(self, t: int) -> None:
        """Wait until enough clients can be asked; the first round waits for more.

        Who declined is not among them until it says otherwise, or rounds would go by in hours in which nobody works.
        """
        wanted, outbox = (self.settings.start_with if t == 0 else self.settings.least), time.monotonic()
        while True:
            free = self.reachable()
            able = [client for client in self.enrolled if client.node in free and not client.leaving]
            here = [client for client in able if not client.declines]
            leaving = any(client.member and client.leaving for client in self.enrolled)
            if len(here) >= wanted or (leaving and t > 0):
                return
            if time.monotonic() - outbox > 30:
                why = f" ({len(able) - len(here)} decline)" if len(able) > len(here) else ""
                print(f"round {t} waits for {wanted} devices, {len(here)} can be asked{why}", file=sys.stderr)
                outbox = time.monotonic()
            time.sleep(4 * POLL)
            self._greet()
            self._check_in()
            self.hear(self.post.collect())

    # -- what they say

    def hear(self, answers: Sequence[Heard]) -> None:
        """Answers to what is not a question of this round: who somebody is, a late reply, a goodbye."""
        for heard in answers:
            if heard.request.what == "hello":
                self._enter(heard)
                continue
            late = heard.request.what == "work"
            if self.know(heard, self.late_reply if late else _nothing) is not None and late:
                self.notes.late += 1

    def _enter(self, heard: Heard) -> None:
        node, head = heard.request.node, heard.head
        if heard.failed:  # the way's fault, or a device that is not ready yet
            self.notes.failed.append(f"node {node}: {heard.wrong}")
            self.introductions.not_yet(node)
            return
        try:
            wrong = heard.wrong or self.wrong_introduction(node, head)
            entered = wrong or self.enrolled.enter(head["name"], head["key"], head["examples"], node)
        except Exception as error:
            entered = _words(error)
        if isinstance(entered, str):
            self.notes.refused.append(f"node {node}: {entered}")
            self.post.send([self.introductions.refuse(node, entered, self.run)], HELLO_SECONDS)
            return
        entered.accepts, entered.labels = head["next"], tuple(head.get("labels", ()))
        entered.leaving = head["leaving"] and not entered.member  # its leaving is on record: it is told so
        entered.asked = -CHECK_IN_SECONDS if head["leaving"] else time.monotonic()  # its goodbye comes when it is asked

    def know(self, heard: Heard, read: Read[Found]) -> tuple[Client, Found] | None:
        """The client that has answered, and what `read` makes of its answer.

        None where the answer cannot be used; that is noted, and is as if the client had not answered.
        """
        client = self.enrolled.at(heard.request.node)
        if client is None or client.number != heard.request.client:
            return None
        if heard.failed:
            self.notes.failed.append(f"{client.name}: {heard.wrong}")
            return None
        try:
            if heard.wrong is not None:
                raise Refused(heard.wrong)
            if (heard.head["client"], heard.head["name"]) != (client.number, client.name):
                raise Refused("it speaks for another client")
            found = read(client, heard)
            leaves = heard.head["leaving"] and client.member
            rows = self.rows_of(heard) if leaves else None
        except Exception as error:  # whatever one device sends, the training of the others goes on
            self.notes.refused.append(f"{client.name}: {_words(error)}")
            return None
        client.seen, client.accepts = time.monotonic(), heard.head["next"]
        client.declines = not client.accepts and (client.declines or heard.request.what == "request")
        client.holds = heard.head["holds"] if heard.head["holds"] == client.used else NEVER
        client.lost = client.lost or heard.head.get("lost", False)
        if leaves:
            client.leaving, client.mine = True, rows
        return client, found

    def survey(
        self, what: str, clients: Sequence[Client], parts: dict[int, Parts], read: Read[Found]
    ) -> dict[int, Found]:
        """Ask some clients something, and wait for those who answer in time: what `read` makes of their replies."""
        free = self.reachable()
        requests = [Request(c.node, what, parts[c.number], c.number, -2) for c in clients if c.node in free and c.node]
        self.post.send(requests, self.settings.request_seconds)
        waiting, found = {request.client for request in requests}, dict[int, Found]()
        until = time.monotonic() + self.settings.request_seconds
        while waiting and time.monotonic() < until:
            for heard in self.post.collect():
                if heard.request.what != what or heard.request.client not in waiting:
                    self.hear([heard])
                    continue
                waiting.discard(heard.request.client)
                known = self.know(heard, read if REPLY in heard.parts else _nothing)
                if known is not None and known[1] is not None:
                    found[known[0].number] = known[1]
            waiting &= {request.client for request, _, _ in self.post.out.values()}
            time.sleep(POLL)
        return found

    # -- a run

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{ENROLLED}{mark}.safetensors"
        (folder / name).write_bytes(wire.pack({"clients": self.enrolled.to_state()}))
        return [name]

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        self.run = run
        state = wire.unpack((folder / files[0]).read_bytes())["clients"] if files else {}
        self.enrolled.from_state(state)

    def durable(self, t: int) -> None:
        """Devices hear with the next message what will not be asked for again; who has left is told so."""
        self.enrolled.durable()
        free = self.reachable()
        gone = [c for c in self.enrolled if c.leaving and not c.member and c.node in free]
        requests = [Request(c.node, "bye", question("bye", c.standing(self.run)), c.number, -2) for c in gone if c.node]
        self.post.send(requests, HELLO_SECONDS)
        for client in gone:  # whoever comes again does so as another node
            self.introductions.strangers.add(client.node or 0)
            client.leaving, client.node = False, None

    def close(self) -> None:
        """Wait until those who have left or were refused know it; the other nodes serve the next run."""
        until = time.monotonic() + CLOSE_SECONDS
        while (
            any(request.what in ("bye", "refused") for request, _, _ in self.post.out.values())
            and time.monotonic() < until
        ):
            self.post.collect()
            time.sleep(POLL)


def _nothing(client: Client, heard: Heard) -> None:
    """Of an answer that has only a head."""


def _words(error: Exception) -> str:
    """Why an answer cannot be used."""
    return str(error) if isinstance(error, Refused) else f"its answer cannot be used ({type(error).__name__}: {error})"
