"""A device: one client, which answers the server's questions (messages.py). It never speaks first.

Its rows are on its disk before its reply is on the way, and become its own when the server says that the reply was
used. Training ends in time: steps are chosen by the speed measured so far, and it stops at a step boundary when time is
up.

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

from turnout.exchange import Assignment, Download, Limit, Measure, Told
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.local import turn_out
from turnout.runtimes import wire
from turnout.runtimes.clients import Clients, with_first_values
from turnout.runtimes.flower.keys import sign, signed_text
from turnout.runtimes.flower.link import Parts
from turnout.runtimes.flower.messages import COMMON, HEAD, NEVER, OWN, REPLY, SHARED, Standing, head_of, missed_of
from turnout.runtimes.flower.policy import Policy
from turnout.runtimes.flower.rows import RowsOnDisk
from turnout.types import State, Tensors, Turnout, flatten

HELD = "held"  # among the rows on disk: the shared parameters of the beginning of that round
LEAVING, LEFT = "leaving", "left"  # files in a device's folder
EASY = 0.5  # of the time there is: work that is expected to take less is not watched


@dataclass(frozen=True)
class Identity:
    """Who a device is: its client's name, what its data is like, its private key, and what it trains."""

    name: str
    data: str  # a description as JSON (turnout.data.description)
    digest: str  # of the experiment's model, algorithm, task and seed: the server's must be the same
    key: Path | None = None


class Device:
    """Answers questions about one client. `folder` is the device's own."""

    def __init__(self, identity: Identity, clients: Clients, folder: Path, policy: Policy | None = None):
        self.identity, self.clients, self.folder = identity, clients, folder
        self.policy, self.rows = policy or Policy(), RowsOnDisk(folder / "rows")
        self.standing: Standing | None = None  # whose rows are in memory
        self.held: Tensor | None = None
        self.steps_a_second: float | None = None
        self.slowness = 0.0  # seconds added at every look at the clock, to try what slow devices do
        folder.mkdir(parents=True, exist_ok=True)

    def answer(self, parts: Parts) -> Parts:
        """The answer to a question."""
        head = head_of(parts)
        standing, what = Standing.of(head), str(head["what"])
        if what == "hello":  # the server does not know yet whose rows these are
            return self._said(standing, **self._introduction(head, standing))
        if what == "bye":
            (self.folder / LEFT).touch()
            return self._said(standing)
        if not self._settle(standing):
            return self._said(standing, lost=True)
        questions: dict[str, Callable[[State, Standing, Parts], Parts]] = {
            "request": self._request, "work": self._work, "measure": self._measure, "gradient": self._gradient,
        }  # fmt: skip
        if what not in questions:
            return self._said(standing, error=f"no question is called {what!r}")
        return questions[what](head, standing, parts)

    def _said(self, standing: Standing, **more: Any) -> Parts:
        leaving = (self.folder / LEAVING).exists()
        refusal = "leaving" if leaving else self.policy.refusal()
        head = {
            "name": self.identity.name,
            "client": standing.client,
            "leaving": leaving,
            "holds": self._holds(standing),
        }
        parts = {HEAD: wire.pack(head | {"next": refusal is None, "why": refusal or ""} | more)}
        if leaving and standing.used > NEVER and standing == self.standing:
            parts[OWN] = wire.pack({"rows": self._mine(standing)})
        return parts

    def _holds(self, standing: Standing) -> int:
        """The round of the model on this device's disk."""
        return standing.used if self.held is not None and standing == self.standing else NEVER

    def _mine(self, standing: Standing) -> Tensors:
        """What the terms need to forget or to remember this client."""
        return self.clients.store.gather(torch.tensor([standing.client]), lambda name: name.startswith("mine/"))

    # -- what is its own

    def _settle(self, standing: Standing) -> bool:
        """Go to the rows of the reply that was used last; False where they are lost."""
        if standing == self.standing:
            return True
        client_1, store = torch.tensor([standing.client]), self.clients.store
        store.clear()
        self.held = None
        if standing.used > NEVER and self._keeps():
            rows = self.rows.read(standing.run, standing.used)
            if rows is None:
                self.standing = None
                return False
            self.held = rows.pop(HELD, None)
            store.scatter(client_1, {name: value[None] for name, value in rows.items()})
        self.rows.settle(standing)
        self.standing = standing
        return True

    def _keeps(self) -> bool:
        """Whether anything is kept between rounds at all."""
        return bool(self.clients.store.initial) or not isinstance(self.clients.algorithm.compression, Dense)

    def _keep(self, standing: Standing, t: int, shared_P: Tensor) -> None:
        """Write what would be kept of a round; what is pending in memory is dropped, the disk has it."""
        pending = self.clients.let_go()
        if pending is None or not self._keeps():
            return
        rows = {name: value[0] for name, value in pending[1].items()}
        if not isinstance(self.clients.algorithm.compression, Dense):
            rows[HELD] = shared_P
        self.rows.write(standing.run, t, rows)

    # -- questions

    def _introduction(self, head: State, standing: Standing) -> dict[str, Any]:
        clients, identity = self.clients, self.identity
        said = {
            "examples": int(clients.federation.examples(torch.tensor([max(standing.client, 0)]))[0]),
            "data": identity.data, "digest": identity.digest, "key": "", "signature": "",
        }  # fmt: skip
        if identity.key is not None:
            text = signed_text(standing.run, str(head["challenge"]), identity.name)
            said["key"], said["signature"] = sign(identity.key, text)
        return said

    def _request(self, head: State, standing: Standing, parts: Parts) -> Parts:
        return self._said(standing)

    def _work(self, head: State, standing: Standing, parts: Parts) -> Parts:
        began = time.monotonic()
        if (self.folder / LEAVING).exists():
            return self._said(standing)
        download = self._download(head, standing, parts)
        client_1, full = download.client_C, self._turnout(download.client_C, None, download.t)[1]
        if int(full[0]) == 0:
            return self._said(standing, steps=0)
        asked = self._assignment(client_1, full, download.t, began + float(head["seconds"]))
        training = time.monotonic()
        replies, state = self.clients.work(download, asked)
        steps_1 = replies.report.pop("steps", asked.steps_R)
        spent = time.monotonic() - training
        self.steps_a_second = int(steps_1[0]) / max(spent, 1e-9)
        self.clients.keep(replies, state)
        if not bool(self.clients.algorithm.weighting.counts(self._turnout(client_1, steps_1, download.t)[0])[0]):
            replies = self.clients.unfinished(client_1, download)
            self.clients.let_go()
        self._keep(standing, download.t, download.shared_P)
        said = self._said(standing, steps=int(steps_1[0]), training=spent)
        return said | {REPLY: wire.pack(wire.replies_tree(replies))}

    def _download(self, head: State, standing: Standing, parts: Parts) -> Download:
        common, own = wire.unpack(parts[COMMON]), wire.unpack(parts[OWN])
        client_1, missed = torch.tensor([standing.client]), missed_of(head, parts)
        if missed is None:
            shared_P = wire.unpack(parts[SHARED])["shared"]
        else:
            assert self.held is not None, "the server sends only what was missed to a device that holds a model"
            sending = Sending(common["t"], self.clients.seed, client_1, self.clients.model.layout.shared_slots)
            shared_P = self.clients.algorithm.compression.received(self.held, missed, sending)
        return Download(
            t=common["t"], lr=common["lr"], shared_P=shared_P, states=flatten(common["states"])[0], down=common["down"],
            client_C=client_1, start_CP=own.get("start"), told=Told.from_state(own["told"]),
        )  # fmt: skip

    def _turnout(self, client_1: Tensor, steps_1: Tensor | None, t: int) -> tuple[Turnout, Tensor]:
        """This client's turnout after so many steps (None: all of them), and those steps."""
        clients = self.clients
        examples_1, single = clients.federation.examples(client_1).cpu(), clients.model.batch_statistics
        local, everything = clients.algorithm.local, torch.ones(1, dtype=torch.float64)
        turnout, full_1 = turn_out(client_1, everything, examples_1, local, single, t)
        if steps_1 is None or int(full_1[0]) == 0:
            return turnout, full_1
        return turn_out(client_1, steps_1.double() / full_1, examples_1, local, single, t)

    def _assignment(self, client_1: Tensor, full_1: Tensor, t: int, until: float) -> Assignment:
        """All the work, or as much as there is time for."""
        left, rate = until - time.monotonic(), self.steps_a_second

        def scale(steps_1: Tensor) -> Tensor | None:
            scale_1 = self.clients.algorithm.weighting.client_scale(self._turnout(client_1, steps_1, t)[0])
            by_client = self.clients.algorithm.scale_at == "client" and float(scale_1[0]) != 1
            return scale_1 if by_client else None

        easy = not self.slowness and (rate is None or int(full_1[0]) / rate < EASY * left)
        if easy and rate is not None:
            return Assignment(client_1, full_1, scale(full_1))

        def reached() -> bool:
            time.sleep(self.slowness)
            return time.monotonic() > until

        return Assignment(client_1, full_1, None, Limit(reached, scale))

    def _measure(self, head: State, standing: Standing, parts: Parts) -> Parts:
        asked: Measure = wire.measure_of(wire.unpack(parts[OWN]) | wire.unpack(parts[COMMON]))
        tested = int(self.clients.federation.test(asked.client_C, asked.t).count_C[0])
        if not tested:
            return self._said(standing, tested=0)
        found = replace(self.clients.measure(asked), central={})
        return self._said(standing, tested=tested) | {REPLY: wire.pack(wire.measured_tree(found))}

    def _gradient(self, head: State, standing: Standing, parts: Parts) -> Parts:
        asked = wire.unpack(parts[COMMON])
        states, one = flatten(asked["states"])[0], torch.ones(1, dtype=torch.float64)
        flat_P, own = with_first_values(self.clients.model, asked["shared"], states)
        found_P = self.clients.mean_gradient(flat_P, own, torch.tensor([standing.client]), one, asked["t"])
        assert found_P is not None
        return self._said(standing) | {REPLY: wire.pack({"gradient": found_P[: self.clients.model.layout.shared]})}
