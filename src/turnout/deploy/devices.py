"""Real clients of any track: who joins and leaves, one round of work, and other questions.

    asked ─▶ connected and idle? ─▶ accepted already, or request ─▶ work ─▶ reply, checked
                                                    │
                                      declined, an error, too late: absent

What was observed is the turnout. A reply that arrives after its round has closed is late, and discarded.

Shape letters: C clients asked for, I any clients.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from turnout.clients.store import ENROLLED
from turnout.data.description import described, enrolment_of
from turnout.data.federation import Federation
from turnout.deploy.enrolment import HELLO_SECONDS, Client, Enrolled, Introductions, digest_of
from turnout.deploy.link import Delivery, Mailbox, Request, current, question
from turnout.deploy.settings import Flower
from turnout.experiment import Experiment
from turnout.machine.checksums import load_tensors, save_tensors
from turnout.runtimes.border import Refused, shown
from turnout.runtimes.remote import NEVER, REPLY, DeviceTask, Found, RemoteAnswer
from turnout.types import Extra, State, Tensors, flatten, unflatten
from turnout.world.events import Event, Join, Leave

POLL = 0.1  # seconds between two looks for answers
LOST = "restore it from a copy; without it, delete the checkpoint and run again with --resume to start over"
CHECK_IN_SECONDS = 30.0  # a client that was not asked anything for so long is asked whether it would work
CLOSE_SECONDS = 5.0  # that a run waits at its end until clients that left have been notified
MARGIN = 0.3  # part of a round's time that is left for the reply, after the end of training

Read = Callable[[int, RemoteAnswer], Found]


@dataclass
class Notes:
    """What the record of a round has beside its turnout.

    refused      answers that were refused, and why
    declined     clients that declined to work, and why
    failed       messages that were lost, and why
    late         number of replies to earlier rounds
    unreachable  number of clients that were not connected, or busy
    """

    refused: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: int = 0
    unreachable: int = 0

    def extra(self) -> Extra:
        lists = {name: words for name, words in vars(self).items() if words and isinstance(words, list)}
        counts = {name: float(n) for name, n in vars(self).items() if n and name not in lists}
        return {name: "; ".join(map(shown, words)) for name, words in lists.items()} | counts


class DeviceClients:
    """Real clients. `run` is this run's own name; devices keep their rows by it.

    settings    the runtime's settings
    experiment  as prepared: devices must have the same
    federation  the server's own data, if it has some
    values      checksums of the model's first values, by name, if devices must have the same model
    wrong       a track's own check of an introduction: why it is refused, or None
    """

    def __init__(
        self,
        settings: Flower,
        experiment: Experiment,
        federation: Federation | None,
        values: Mapping[str, str] | None = None,
        wrong: Callable[[State], str | None] = lambda head: None,
    ):
        connection = current()
        data = connection.data if federation is None else described(enrolment_of(federation), "")
        assert data is not None, "a server without data begins once it has a description (first_enrolment)"
        self.settings, self.data, self._wrong = settings, data, wrong
        self.introductions = Introductions(connection.keys, data, digest_of(experiment), values)
        self.enrolled = Enrolled(max(settings.clients, 0 if federation is None else federation.clients))
        self.names = self.enrolled.names
        self.link, self.mailbox = connection.link, Mailbox(connection.link, settings.most_bytes)
        self.run, self.notes = "", Notes()

    def leaving_rows(self, answer: RemoteAnswer) -> Tensors | None:
        """The rows that a client which leaves has sent; None: none."""
        return None

    def examples(self, client_C: Tensor) -> Tensor:
        return torch.tensor([self.enrolled[c].examples for c in client_C.tolist()], dtype=torch.int64)

    def labels(self, client: int) -> tuple[int, ...]:
        return self.enrolled[client].labels

    def mark_used(self, client_I: Tensor, t: int) -> None:
        for c in client_I.tolist():
            self.enrolled[c].used = t
            self.enrolled[c].holds = NEVER

    def noted(self) -> Extra:
        notes, self.notes = self.notes, Notes()
        return notes.extra()

    # -- who is there

    def events(self, t: int) -> Sequence[Event]:
        """Who has enrolled, asked to leave, or been away for too long; waits until enough clients are there."""
        self._look_around()
        self._wait(t)
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

    def _look_around(self) -> None:
        """Ask unknown nodes who they are, check in with clients that were not asked for a while, and read answers."""
        nodes = self.link.nodes()
        self.introductions.refused &= nodes  # a refused node that reconnects may try again
        known = {client.node for client in self.enrolled} | self.mailbox.busy()
        self.mailbox.send(self.introductions.questions(nodes - known, self.run), HELLO_SECONDS)
        now, free = time.monotonic(), self.reachable()
        due = [c for c in self.enrolled if c.member and c.node in free and now - c.asked > CHECK_IN_SECONDS]
        for client in due:
            client.asked = now
        self.send("request", due, HELLO_SECONDS)
        self.handle(self.mailbox.collect())

    def send(self, what: str, clients: Sequence[Client], seconds: float, t: int = -1) -> None:
        """Send a question that has only a head."""
        requests = [
            Request(client.node, what, question(what, client.standing(self.run)), client.number, t)
            for client in clients
            if client.node is not None
        ]
        self.mailbox.send(requests, seconds)

    def reachable(self) -> set[int]:
        """Nodes that are connected and have answered everything."""
        return self.link.nodes() - self.mailbox.busy()

    def _wait(self, t: int) -> None:
        """Wait until enough clients can be asked; the first round waits for more.

        Clients that declined do not count until they accept again, or rounds would pass in hours when none works.
        """
        wanted, reported = (self.settings.start_with if t == 0 else self.settings.least), time.monotonic()
        while True:
            free = self.reachable()
            able = [client for client in self.enrolled if client.node in free and not client.leaving]
            here = [client for client in able if not client.declines]
            leaving = any(client.member and client.leaving for client in self.enrolled)
            if len(here) >= wanted or (leaving and t > 0):
                return
            if time.monotonic() - reported > 30:
                why = f" ({len(able) - len(here)} decline)" if len(able) > len(here) else ""
                print(f"round {t} waits for {wanted} devices, {len(here)} can be asked{why}", file=sys.stderr)
                reported = time.monotonic()
            time.sleep(4 * POLL)
            self._look_around()

    # -- answers

    def handle(self, answers: Sequence[Delivery]) -> None:
        """Handle answers that no current question waits for: introductions, late replies, requests to leave."""
        for delivery in answers:
            if delivery.request.what == "hello":
                self._enter(delivery)
            elif self.identify(delivery) is not None and delivery.request.what == "work":
                self.notes.late += 1

    def _enter(self, delivery: Delivery) -> None:
        node, head = delivery.request.node, delivery.answer.head
        if delivery.failed:  # the link's fault, or a device that is not ready yet
            self.notes.failed.append(f"node {node}: {delivery.wrong}")
            self.introductions.postpone(node)
            return
        try:
            wrong = delivery.wrong or self._wrong(head) or self.introductions.wrong(node, head, self.run)
            entered = wrong or self.enrolled.enter(head["name"], head["key"], head["examples"], node)
        except Exception as error:
            entered = _reason(error)
        if isinstance(entered, str):
            self.notes.refused.append(f"node {node}: {entered}")
            self.mailbox.send([self.introductions.refuse(node, entered, self.run)], HELLO_SECONDS)
            return
        self.mailbox.forget_others(entered.number, node)  # their loss, reported later, would count as this node's
        entered.accepts, entered.labels = head["next"], tuple(head.get("labels", ()))
        entered.leaving = head["leaving"] and not entered.member  # its leaving is on record: confirm it
        # a member that wants to leave is asked at once, as its rows come with the answer
        entered.asked = -CHECK_IN_SECONDS if head["leaving"] else time.monotonic()

    def identify(self, delivery: Delivery, read: Read[Found] | None = None) -> tuple[Client, Found | None] | None:
        """The client that has answered, and what `read` makes of its reply, if there is one.

        None if the answer cannot be used: that is noted, and the client counts as not having answered.
        """
        client, request, answer = self.enrolled.at(delivery.request.node), delivery.request, delivery.answer
        if client is None or client.number != request.client:
            return None
        if delivery.failed:
            self.notes.failed.append(f"{client.name}: {delivery.wrong}")
            return None
        try:
            if delivery.wrong is not None:
                raise Refused(delivery.wrong)
            if (answer.head["client"], answer.head["name"]) != (client.number, client.name):
                raise Refused("it speaks for another client")
            found = read(client.number, answer) if read is not None and REPLY in answer.parts else None
            leaves = answer.head["leaving"] and client.member
            rows = self.leaving_rows(answer) if leaves else None
        except Exception as error:  # whatever one device sends, the training of the others continues
            self.notes.refused.append(f"{client.name}: {_reason(error)}")
            return None
        client.seen, client.accepts = time.monotonic(), answer.head["next"]
        client.declines = not client.accepts and (client.declines or request.what == "request")
        client.holds = answer.head["holds"] if answer.head["holds"] == client.used else NEVER
        client.lost = client.lost or answer.head.get("lost", False)
        if leaves:
            client.leaving, client.mine = True, rows
        return client, found

    # -- questions

    def work(self, client_C: Tensor, task: DeviceTask[Found]) -> dict[int, Found]:
        """Clients that have accepted already get work, the others that can be reached a request, if they have none."""
        settings, free = self.settings, self.reachable()
        staying = [c for c in map(self.enrolled.__getitem__, client_C.tolist()) if not c.leaving]
        clients = [c for c in staying if c.node in free]
        asking = Asking(self, task, settings.round_seconds, settings.close_at)
        asking.requested = self.mailbox.adopt("request", {c.number for c in staying}, task.t)
        self.notes.unreachable = len(client_C) - len(clients) - len(asking.requested)
        asking.send_requests([client for client in clients if not client.accepts])
        asking.send_work([client for client in clients if client.accepts])
        return asking.wait()

    def survey(self, client_C: Tensor, task: DeviceTask[Found]) -> dict[int, Found]:
        free, seconds = self.reachable(), self.settings.request_seconds
        asking = Asking(self, task, seconds)
        asking.send([client for c in client_C.tolist() if (client := self.enrolled[c]).node in free], seconds, seconds)
        return asking.wait()

    # -- a run

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{ENROLLED}{mark}.safetensors"
        tensors, plain = flatten(self.enrolled.to_state())
        save_tensors(folder / name, tensors, plain)
        return [name]

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        self.run = run
        self.enrolled.from_state(unflatten(*load_tensors(folder / files[0], LOST)) if files else {})

    def durable(self, t: int) -> None:
        """Devices learn with the next message which rows are durable; clients that left are notified."""
        self.enrolled.durable()
        free = self.reachable()
        gone = [c for c in self.enrolled if c.leaving and not c.member and c.node in free]
        self.send("bye", gone, HELLO_SECONDS)
        for client in gone:  # a client that comes back does so as another node
            self.introductions.refused.add(client.node or 0)
            client.leaving, client.node = False, None

    def close(self) -> None:
        """Wait until clients that left or were refused have been notified; the other nodes serve the next run."""
        until = time.monotonic() + CLOSE_SECONDS
        while any(request.what in ("bye", "refused") for request in self.mailbox.out) and time.monotonic() < until:
            self.mailbox.collect()
            time.sleep(POLL)


class Asking(Generic[Found]):
    """A task for some clients, until it closes.

    devices   the clients
    task      the task
    seconds   it closes after so many,
    close_at  or when this part of the clients that were sent the task has replied
    """

    def __init__(self, devices: DeviceClients, task: DeviceTask[Found], seconds: float, close_at: float = 1.0):
        self.devices, self.task, self.seconds, self.close_at = devices, task, seconds, close_at
        self.began = time.monotonic()
        self.done: dict[int, Found] = {}
        self.requested: set[int] = set()  # asked whether they would work
        self.working: set[int] = set()  # sent the task
        self.accepted = 0

    def send_requests(self, clients: list[Client]) -> None:
        """Ask clients whether they would work."""
        self.devices.send("request", clients, self.devices.settings.request_seconds, self.task.t)
        self.requested |= {client.number for client in clients}

    def send_work(self, clients: list[Client]) -> None:
        """Send the task to clients that have accepted, with time for the reply; it may arrive after the round."""
        left = self.seconds - (time.monotonic() - self.began)
        for client in clients:
            client.accepts, client.asked = False, time.monotonic()
        self.send(clients, max(left - MARGIN * self.seconds, 0.5 * left), 2 * self.seconds + 60)

    def send(self, clients: list[Client], seconds: float, valid: float) -> None:
        """Send the task to clients that have so many seconds for it; the message is valid for so many."""
        requests = []
        for client in clients:
            assert client.node is not None
            more, parts = self.task.message(client.number, seconds)
            parts = question(self.task.what, client.standing(self.devices.run), **more) | parts
            requests.append(Request(client.node, self.task.what, parts, client.number, self.task.t))
        self.devices.mailbox.send(requests, valid)
        self.working |= {client.number for client in clients}
        self.accepted += len(clients)

    def wait(self) -> dict[int, Found]:
        """What each client did."""
        while not self._closed():
            for delivery in self.devices.mailbox.collect():
                self._handle(delivery)
            time.sleep(POLL)
        return self.done

    def _closed(self) -> bool:
        passed = time.monotonic() - self.began
        if passed > self.seconds:
            return True
        if passed > self.devices.settings.request_seconds:
            self.requested.clear()
        out = {r.client for r in self.devices.mailbox.out if r.t == self.task.t and r.client is not None}
        self.working &= out  # a node that has gone answers nothing
        self.requested &= out
        if not self.working and not self.requested:
            return True
        enough = math.ceil(self.close_at * self.accepted)
        return not self.requested and self.accepted > 0 and len(self.done) >= enough

    def _handle(self, delivery: Delivery) -> None:
        """Handle an answer to this task or to a request to work, or to something else that was asked."""
        request = delivery.request
        replied = request.what == self.task.what and request.client in self.working
        if not replied and not (request.what == "request" and request.t == self.task.t >= 0):
            self.devices.handle([delivery])
            return
        known = self.devices.identify(delivery, self.task.read if replied else None)
        if request.client is not None:
            self.requested.discard(request.client)
            self.working.discard(request.client)
        if known is None:
            return
        client, done = known
        if done is not None:
            self.done[client.number] = done
        elif not replied and client.accepts:
            self.send_work([client])
        elif not replied:
            self.devices.notes.declined.append(f"{client.name}: {delivery.answer.head['why']}")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Refused) else f"its answer cannot be used ({type(error).__name__}: {error})"
