"""The device's side: one client that answers the server's questions (link.py), and what it does to train weights.

A device never sends unasked. Its rows are on its disk before its reply is sent, and become its own when the server
reports that the reply was used. Training ends in time: steps are chosen by the speed measured so far, and it stops at
a step boundary when time is up.

Shape letters: P shared parameters; tensors of clients have one row here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.deploy.keys import sign, signed_text
from turnout.deploy.runtime import SHARED, turnout_after
from turnout.deploy.secure import SECURE, SecureDevice
from turnout.errors import UserError
from turnout.exchange import Assignment, Download, Limit, Measure, Outbox
from turnout.experiment import Experiment
from turnout.machine.checksums import Damaged, load_tensors, save_tensors
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.privacy.discrete import sum_rule
from turnout.runtimes import wire
from turnout.runtimes.border import shown
from turnout.runtimes.client_pool import ClientPool
from turnout.runtimes.remote import COMMON, HEAD, NEVER, OWN, REPLY, ClientStanding, ClientTasks, DoTask, Parts
from turnout.runtimes.secure_sum import SumLost
from turnout.types import State, Tensors, Turnout, flatten

LEAVING, LEFT = "leaving", "left"  # files in a device's folder
HELD = "held"  # among the rows on disk: the shared parameters at the beginning of that round
EASY = 0.5  # part of the time there is: work that is expected to take less needs no time limit


@dataclass
class ClientDevice:
    """Answers questions about one client.

    name      its client's name
    data      description of its data, as JSON (turnout.data.description)
    digest    hash of the experiment's model, algorithm, task and seed: the server's must be the same
    tasks     what it does for its track
    folder    its own folder
    refusal   why it declines to work now; None: it accepts
    key       file of its private key
    download  seconds that the question at hand took to arrive
    upload    seconds that the last reply to work took to send
    """

    name: str
    data: str
    digest: str
    tasks: ClientTasks
    folder: Path
    refusal: Callable[[], str | None] = lambda: None
    key: Path | None = None
    download: float | None = None
    upload: float | None = None
    _worked: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def answer(self, parts: Parts) -> Parts:
        """The answer to a question."""
        head = head_of(parts)
        standing, what = ClientStanding.of(head), str(head["what"])
        self._worked = what == "work"
        if what == "hello":  # the server does not know yet whose rows these are
            key, signature = "", ""
            if self.key is not None:
                text = signed_text(standing.run, str(head["challenge"]), self.name, self.data)
                key, signature = sign(self.key, text)
            proof = {"data": self.data, "digest": self.digest, "values": self.tasks.values}
            return self._answer(standing, **proof, key=key, signature=signature, **self.tasks.introduction())
        if what == "refused":
            print(f"the server refuses {self.name}: {shown(str(head['why']))}", flush=True)
            return self._answer(standing)
        if what == "bye":
            (self.folder / LEFT).touch()
            return self._answer(standing)
        if not self.tasks.settle(standing):
            return self._answer(standing, lost=True)
        if what == "request" or (what == "work" and self.leaves) or (what == "keys" and self.declines):
            return self._answer(standing)
        if what not in self.tasks.tasks:
            return self._answer(standing, error=f"no question is called {what!r}")
        try:
            more, reply = self.tasks.tasks[what](head, standing, parts)
        except SumLost as why:
            return self._answer(standing, error=str(why))
        except OSError as error:  # a full or failing disk costs this turn; nothing was sent that is not on the disk
            print(f"{self.name} cannot keep its rows: {error}", flush=True)
            return self._answer(standing, error=f"its disk failed ({error.strerror})")
        if what == "work" and reply is not None:
            more = more | {"download": self.download, "upload": self.upload}
        found = self._answer(standing, **more)
        return found if reply is None else found | {REPLY: wire.pack(reply)}

    def sent(self, seconds: float) -> None:
        """Note how long the last answer took to send; the next reply to work reports it, if it was one."""
        if self._worked:
            self.upload = seconds

    @property
    def leaves(self) -> bool:
        return (self.folder / LEAVING).exists()

    @property
    def declines(self) -> str | None:
        """Why it does not work now; None: it does."""
        return "leaving" if self.leaves else self.refusal()

    def _answer(self, standing: ClientStanding, **more: Any) -> Parts:
        """An answer with the plain values that every answer has, and some more."""
        refusal = self.declines
        head = {
            "name": self.name, "client": standing.client, "leaving": self.leaves,
            "holds": self.tasks.holds(standing), "next": refusal is None, "why": refusal or "",
        }  # fmt: skip
        parts = {HEAD: wire.pack(head | more)}
        if self.leaves and (rows := self.tasks.leaving_rows(standing)) is not None:
            parts[OWN] = wire.pack({"rows": rows})
        return parts


def head_of(parts: Parts) -> State:
    """The head of a question."""
    if HEAD not in parts:
        raise UserError(f"a message has no head, only {sorted(parts)[:3]}")
    return wire.unpack(parts[HEAD])


class RowsOnDisk:
    """The rows of one client after each round that the server may still return to, by run and round.

    One file a round, written before the reply is sent. The server decides which of them are the client's rows now:
    those of the last reply that was used. A server that was killed resumes from its last checkpoint, so a file is kept
    until a later one is in a checkpoint.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def _path(self, run: str, t: int) -> Path:
        return self.folder / run / f"{t:07d}.safetensors"

    def write(self, run: str, t: int, rows: Tensors) -> None:
        path = self._path(run, t)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, {name: value.contiguous().cpu() for name, value in rows.items()}, {})

    def read(self, run: str, t: int) -> Tensors | None:
        """The rows after a round; None if they are lost or damaged: the client then begins anew."""
        try:
            return load_tensors(self._path(run, t), "this client begins anew")[0]
        except Damaged as damaged:
            print(damaged, flush=True)
            return None

    def settle(self, standing: ClientStanding) -> None:
        """Delete rows that are never needed again: older than the checkpoint.

        Later ones stay, also those of unused replies: a question of an earlier round that comes again deletes nothing.
        """
        for path in sorted((self.folder / standing.run).glob("[0-9]*.safetensors")):
            if int(path.stem) < standing.durable:
                path.unlink()


class WeightTasks:
    """What a client of the weight track does on its device.

    experiment    as prepared
    clients       a pool of this one client
    folder        the device's folder
    values        checksums of the model's first values
    slowness      seconds added whenever training checks the time, to simulate a slow device
    step_seconds  seconds that a step takes at least, for the same purpose
    """

    def __init__(
        self, experiment: Experiment, clients: ClientPool, folder: Path, values: str, slowness: float = 0.0,
        step_seconds: float = 0.0,
    ):  # fmt: skip
        self.experiment, self.clients, self.values = experiment, clients, values
        self.slowness, self.step_seconds = slowness, step_seconds
        self.algorithm, self.rows = clients.algorithm, RowsOnDisk(folder / "rows")
        self.standing: ClientStanding | None = None  # whose rows are in memory
        self.held: Tensor | None = None
        self.steps_a_second: float | None = None
        self.encodes = not isinstance(self.algorithm.compression, Dense)
        self.keeps = bool(clients.store.initial) or self.encodes  # whether anything is kept between rounds
        self.tasks: dict[str, DoTask] = {"work": self._work, "measure": self._measure, "gradient": self._gradient}
        rule = sum_rule(self.algorithm)
        self.secure = None if rule is None else SecureDevice(rule, folder, self.algorithm.privacy)
        if self.secure is not None:  # nothing of one device alone: neither its metrics nor its gradient
            self.tasks = {"work": self._work, **self.secure.tasks}

    def introduction(self) -> State:
        return {"examples": int(self.clients.federation.examples(torch.tensor([0]))[0])}

    def holds(self, standing: ClientStanding) -> int:
        return standing.used if self.held is not None and standing == self.standing else NEVER

    def leaving_rows(self, standing: ClientStanding) -> Tensors | None:
        if standing.used == NEVER or standing != self.standing:
            return None
        return self.clients.store.gather(torch.tensor([standing.client]), lambda name: name.startswith("term/"))

    def settle(self, standing: ClientStanding) -> bool:
        if standing == self.standing:
            return True
        self.clients.store.clear()
        self.held = None
        if standing.used > NEVER and self.keeps:
            rows = self.rows.read(standing.run, standing.used)
            if rows is None:
                self.standing = None
                return False
            self.held = rows.pop(HELD, None)
            own = {name: value[None] for name, value in rows.items()}
            self.clients.store.scatter(torch.tensor([standing.client]), own)
        self.rows.settle(standing)
        self.standing = standing
        return True

    # -- tasks

    def _work(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        until = time.monotonic() + float(head["seconds"])
        download = self.read_download(head, standing, parts)
        client_1, full_1 = download.client_C, self._turnout(download.client_C, None)[1]
        if int(full_1[0]) == 0:
            return {"steps": 0}, None
        asked = self._assignment(client_1, full_1, download.t, until)
        began = time.monotonic()
        replies, rows = self.clients.work(download, asked)
        replies = replies.reported()
        steps_1 = replies.report.pop("steps", asked.steps_R)
        time.sleep(max(0.0, int(steps_1[0]) * self.step_seconds - (time.monotonic() - began)))
        spent = time.monotonic() - began
        self.steps_a_second = int(steps_1[0]) / max(spent, 1e-9)
        if not bool(self.algorithm.weighting.counts(self._turnout(client_1, steps_1)[0])[0]):
            replies = self.clients.unfinished(client_1, download)
        elif self.keeps and bool(replies.report["finite"].all()):
            rows = {name: value[0] for name, value in rows.items()}
            self.rows.write(standing.run, download.t, rows | ({HELD: download.shared_P} if self.encodes else {}))
        if self.secure is not None and "loss" in replies.report:
            if not bool(replies.report["finite"].all()):
                raise SumLost("its training was not finite")
            masked = self.secure.masked(standing, parts[SECURE], replies, download.t)
            return {"steps": int(steps_1[0]), "training": spent}, masked
        return {"steps": int(steps_1[0]), "training": spent}, wire.replies_tree(replies)

    def read_download(self, head: State, standing: ClientStanding, parts: Parts) -> Download:
        """The download in a message, which may have only the changes that the device missed."""
        common, own, client_1 = wire.unpack(parts[COMMON]), wire.unpack(parts[OWN]), torch.tensor([standing.client])
        if head.get("missed") is None:
            shared_P = wire.unpack(parts[SHARED])["shared"]
        else:
            assert self.held is not None, "the server sends only what was missed to a device that holds a model"
            missed = [(int(t), parts[f"missed-{i}"]) for i, t in enumerate(head["missed"])]
            sending = Sending(common["t"], self.clients.seed, client_1, self.clients.model.layout.shared_slots)
            shared_P = self.algorithm.compression.received(self.held, missed, sending)
        return Download(
            t=common["t"], lr=common["lr"], shared_P=shared_P, states=flatten(common["states"])[0],
            term_states=common["term_states"], client_C=client_1, start_CP=own.get("start"),
            outbox=Outbox.from_state(own["outbox"]),
        )  # fmt: skip

    def _turnout(self, client_1: Tensor, steps_1: Tensor | None) -> tuple[Turnout, Tensor]:
        examples_1, single = self.clients.federation.examples(client_1).cpu(), self.clients.model.batch_statistics
        return turnout_after(steps_1, client_1, examples_1, self.algorithm.local, single)

    def _assignment(self, client_1: Tensor, full_1: Tensor, t: int, until: float) -> Assignment:
        """All the work, or as much as there is time for."""
        left, rate = until - time.monotonic(), self.steps_a_second

        def scale(steps_1: Tensor) -> Tensor | None:
            scale_1 = self.algorithm.weighting.client_scale(self._turnout(client_1, steps_1)[0])
            return scale_1 if self.algorithm.scale_at == "client" and float(scale_1[0]) != 1 else None

        if rate is not None and not self.slowness and int(full_1[0]) / rate < EASY * left:
            return Assignment(client_1, full_1, scale(full_1))

        def reached() -> bool:
            time.sleep(self.slowness)
            return time.monotonic() > until

        return Assignment(client_1, full_1, None, Limit(reached, scale))

    def _measure(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        asked: Measure = wire.measure_of(wire.unpack(parts[OWN]) | wire.unpack(parts[COMMON]))
        tested = int(self.clients.federation.test(asked.client_C, asked.t).count_C[0])
        found = replace(self.clients.measure(asked), central={}) if tested else None
        return {"tested": tested}, None if found is None else wire.measured_tree(found)

    def _gradient(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        asked = wire.unpack(parts[COMMON])
        states, one = flatten(asked["states"])[0], torch.ones(1, dtype=torch.float64)
        flat_P, own = self.clients.model.with_first_values(asked["shared"], states)
        found_P = self.clients.mean_gradient(flat_P, own, torch.tensor([standing.client]), one, asked["t"])
        assert found_P is not None
        return {}, {"gradient": found_P[: self.clients.model.layout.shared]}
