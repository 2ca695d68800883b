"""A device that trains weights: one client of the weight track.

Its rows are on its disk before its reply is on the way, and become its own when the server says that the reply was
used. Training ends in time: steps are chosen by the speed measured so far, and it stops at a step boundary when time is
up.

Shape letters: P shared parameters; tensors of clients have one row here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.deploy.flower.answering import Answering, Device, Identity
from turnout.deploy.flower.link import Parts
from turnout.deploy.flower.messages import COMMON, NEVER, OWN, REPLY, SHARED, Standing, missed_of
from turnout.deploy.flower.policy import Policy
from turnout.deploy.flower.rows import RowsOnDisk
from turnout.exchange import Assignment, Download, Limit, Measure, Outbox
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.local import turn_out
from turnout.runtimes import wire
from turnout.runtimes.clients import ClientPool
from turnout.runtimes.whole_model import with_first_values
from turnout.types import State, Tensors, Turnout, flatten

HELD = "held"  # among the rows on disk: the shared parameters of the beginning of that round
EASY = 0.5  # of the time there is: work that is expected to take less is not watched


class WeightDevice(Device):
    """A device that trains weights."""

    def __init__(self, identity: Identity, clients: ClientPool, folder: Path, policy: Policy | None = None):
        super().__init__(identity, folder, policy)
        self.clients, self.rows = clients, RowsOnDisk(folder / "rows")
        self.held: Tensor | None = None
        self.steps_a_second: float | None = None
        self.step_seconds = 0.0  # that a step takes at least, to try what slow devices do

    def questions(self) -> dict[str, Answering]:
        return {"work": self._work, "measure": self._measure, "gradient": self._gradient}

    def introduction(self) -> dict[str, Any]:
        return {"examples": int(self.clients.federation.examples(torch.tensor([0]))[0])}

    def holds(self, standing: Standing) -> int:
        return standing.used if self.held is not None and standing == self.standing else NEVER

    def mine(self, standing: Standing) -> Tensors:
        return self.clients.store.gather(torch.tensor([standing.client]), lambda name: name.startswith("mine/"))

    # -- what is its own

    def settle(self, standing: Standing) -> bool:
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

    def _work(self, head: State, standing: Standing, parts: Parts) -> Parts:
        began = time.monotonic()
        download = self._download(head, standing, parts)
        client_1, full = download.client_C, self._turnout(download.client_C, None, download.t)[1]
        if int(full[0]) == 0:
            return self.said(standing, steps=0)
        asked = self._assignment(client_1, full, download.t, began + float(head["seconds"]))
        training = time.monotonic()
        replies, state = self.clients.work(download, asked)
        steps_1 = replies.report.pop("steps", asked.steps_R)
        time.sleep(max(0.0, int(steps_1[0]) * self.step_seconds - (time.monotonic() - training)))
        spent = time.monotonic() - training
        self.steps_a_second = int(steps_1[0]) / max(spent, 1e-9)
        self.clients.keep(replies, state)
        if not bool(self.clients.algorithm.weighting.counts(self._turnout(client_1, steps_1, download.t)[0])[0]):
            replies = self.clients.unfinished(client_1, download)
            self.clients.let_go()
        self._keep(standing, download.t, download.shared_P)
        times = {"training": spent, "download": self.download, "upload": self.upload}
        said = self.said(standing, steps=int(steps_1[0]), **times)
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
            client_C=client_1, start_CP=own.get("start"), outbox=Outbox.from_state(own["outbox"]),
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
            return self.said(standing, tested=0)
        found = replace(self.clients.measure(asked), central={})
        return self.said(standing, tested=tested) | {REPLY: wire.pack(wire.measured_tree(found))}

    def _gradient(self, head: State, standing: Standing, parts: Parts) -> Parts:
        asked = wire.unpack(parts[COMMON])
        states, one = flatten(asked["states"])[0], torch.ones(1, dtype=torch.float64)
        flat_P, own = with_first_values(self.clients.model, asked["shared"], states)
        found_P = self.clients.mean_gradient(flat_P, own, torch.tensor([standing.client]), one, asked["t"])
        assert found_P is not None
        return self.said(standing) | {REPLY: wire.pack({"gradient": found_P[: self.clients.model.layout.shared]})}
