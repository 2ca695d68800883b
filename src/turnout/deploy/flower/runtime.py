"""The runtime of real devices: the promise of exchange.py, kept with messages to nodes.

Clients enrol and leave by themselves, what was seen in a round is its turnout, and the same server's half of the round
runs as in a simulation.

Shape letters: C clients of the cohort, I any clients, R replies, P shared parameters.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from turnout.clients.state import state_from
from turnout.deploy.flower import surveys
from turnout.deploy.flower.devices import Devices
from turnout.deploy.flower.enrolled import Client
from turnout.deploy.flower.introductions import digest_of
from turnout.deploy.flower.link import Parts
from turnout.deploy.flower.mailbox import Heard
from turnout.deploy.flower.messages import NEVER, OWN, work_parts
from turnout.deploy.flower.replies import Done, ReplyCheck
from turnout.deploy.flower.settings import Flower
from turnout.deploy.flower.work import RoundOfWork, Work
from turnout.errors import UserError
from turnout.exchange import Departure, Download, Measure, Measured, Outbox
from turnout.layout import Layout
from turnout.parts.compression.base import Dense
from turnout.runtimes import border
from turnout.runtimes.clients import ClientPool, farewell_of
from turnout.runtimes.setup import Setup
from turnout.types import Replies, Tensors, Turnout
from turnout.world.members import Members


class FlowerRuntime(Devices):
    """Real clients that train weights."""

    simulation = None

    def __init__(self, setup: Setup, settings: Flower):
        check_parts(setup, settings)
        super().__init__(settings, digest_of(setup.experiment), setup.federation, setup.first_marks)
        self.setup, self.algorithm, self.seed = setup, setup.algorithm, setup.experiment.seed
        self.tester = ClientPool(setup) if setup.federation is not None else None
        self.replies = ReplyCheck(setup, self.enrolled)
        self._late: dict[int, Done] = {}
        self._unfinished: dict[int, Replies] = {}
        self._worked: dict[int, int] = {}  # the round each of the last replies was made in

    @property
    def layout(self) -> Layout:
        return self.setup.model.layout

    def mean_examples(self, members: Members) -> float:
        return float(self.examples(members.ids()).double().mean()) if len(members) else 0.0

    def late_reply(self, client: Client, heard: Heard) -> None:
        done = self.replies.read(client, heard) if self.settings.late == "use" else None
        if done is not None:
            self._late[client.number] = done

    def _first_rows(self) -> Tensors:
        """What a client keeps for the terms before its first round."""
        shared_P = self.setup.model.flat_P[: self.layout.shared]
        own = {term.name: term.client_state(shared_P) for term in self.algorithm.terms}
        return {f"mine/{term}/{name}": value for term, rows in own.items() for name, value in rows.items()}

    def rows_of(self, heard: Heard) -> Tensors | None:
        return border.rows(heard.parts[OWN], self._first_rows()) if OWN in heard.parts else None

    # -- a round

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        self._unfinished, self._worked = {}, {}
        self.replies.begin(self.data, download)
        work = Work(download.t, partial(self._work_parts, download), self.replies.read)
        self.hear(self.post.collect())
        late, self._late = self._late, {}
        done = RoundOfWork(self, client_C, work, late).play()
        steps_C = torch.tensor([done[c].steps if c in done else 0 for c in client_C.tolist()])
        turnout = self.replies.turnout(client_C, steps_C, download.t)
        counts_C = self.algorithm.weighting.counts(turnout)
        for c, counts in zip(client_C.tolist(), counts_C.tolist(), strict=True):
            if c in done and not counts:
                self._unfinished[c] = done[c].replies
        row_R = counts_C.nonzero().squeeze(1)
        if not len(row_R):
            return turnout, None
        row_R = row_R[torch.sort(steps_C[row_R], descending=True, stable=True).indices]
        used = [done[c] for c in client_C[row_R].tolist()]
        self._worked = {int(d.replies.client_R[0]): d.t for d in used}
        return turnout, Replies.join([d.replies for d in used])

    def _work_parts(self, download: Download, client: Client, seconds: float) -> Parts:
        own = download.among(torch.tensor([client.number]))
        return work_parts(own, client.standing(self.run), client.holds, seconds)

    def unfinished(self, client_I: Tensor, download: Download) -> Replies:
        return Replies.join([self._unfinished[c] for c in client_I.tolist()])

    def commit(self, t: int, client_R: Tensor) -> None:
        for c in client_R.tolist():
            client = self.enrolled[c]
            client.used = self._worked[c]
            client.holds = NEVER if isinstance(self.algorithm.compression, Dense) else client.used

    def farewell(self, client_I: Tensor, outbox: Outbox) -> Departure:
        rows = {c: mine for c in client_I.tolist() if (mine := self.enrolled[c].mine) is not None}
        client_H = torch.tensor(sorted(rows), dtype=torch.int64)
        none = {name: value.new_zeros(0, *value.shape) for name, value in self._first_rows().items()}
        joined = {name: torch.cat([empty, *(rows[c][name] for c in sorted(rows))]) for name, empty in none.items()}
        return farewell_of(client_H, state_from(joined, len(client_H), torch.device("cpu")), outbox, self.algorithm)

    def forget(self, client_I: Tensor) -> None:
        for c in client_I.tolist():
            self.enrolled[c].used = self.enrolled[c].holds = NEVER

    # -- other questions

    def gradient(self, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        return surveys.gradient(self, shared_P, states, client_C, share_C, t)

    def measure(self, asked: Measure) -> Measured:
        return surveys.measure(self, self.tester, self.setup.experiment.task, asked)

    def describe(self) -> dict[str, Any]:
        return self.setup.place.describe() | {"engine": "on devices", "chunk": 1, "threads": 1}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        width = 4 * self.layout.width * (2 if not isinstance(self.algorithm.compression, Dense) else 1)
        return {"cohort": width * cohort}


def check_parts(setup: Setup, settings: Flower) -> None:
    """Refuse what devices cannot do."""
    algorithm = setup.algorithm
    if settings.late == "use" and not isinstance(algorithm.compression, Dense):
        raise UserError("runtime.late = 'use' takes updates of earlier rounds, which only dense ones can be: leave "
                      "algorithm.compression out, or discard late replies")  # fmt: skip
    if algorithm.membership.drop is not None and any(term.client_state(setup.model.flat_P) for term in algorithm.terms):
        raise UserError("algorithm.membership.drop drops clients that are away, and these cannot say the farewell that "
                      "algorithm.terms need: leave one of them out")  # fmt: skip
