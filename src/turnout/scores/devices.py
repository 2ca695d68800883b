"""The score track on real devices: the server's side (runtimes/flower/devices.py), and the device's.

A device's model never leaves it. What it has built waits in its memory until the server says that its scores were used,
so it has to be a warm one (`turnout device run`); what it has learnt is on its disk before it says so.

Shape letters: C clients of the cohort, I any clients, R public samples, T those tested on, l labels of one client.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.data.labels import Public
from turnout.deploy.flower.answering import Answering, Device, Identity
from turnout.deploy.flower.devices import Devices
from turnout.deploy.flower.enrolled import Client
from turnout.deploy.flower.introductions import digest_of
from turnout.deploy.flower.link import Parts
from turnout.deploy.flower.mailbox import Heard
from turnout.deploy.flower.messages import COMMON, NEVER, OWN, REPLY, Standing, question
from turnout.deploy.flower.policy import Policy
from turnout.deploy.flower.settings import Flower
from turnout.deploy.flower.work import RoundOfWork, Work
from turnout.errors import UserError
from turnout.machine.files import write_whole
from turnout.runtimes import border
from turnout.runtimes.schema import Rows
from turnout.runtimes.wire import pack, unpack
from turnout.scores import wire
from turnout.scores.averaging import sent_by
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import (
    Averages,
    BuildAnswer,
    BuildRequest,
    LearnReply,
    LearnRequest,
    OwnOutput,
)
from turnout.scores.setup import ScoreSetup
from turnout.types import State


class DeviceScores(Devices):
    """The server's side. Labels are as devices said when they enrolled."""

    simulation = None

    def __init__(self, setup: ScoreSetup, settings: Flower):
        super().__init__(settings, digest_of(setup.experiment), setup.federation)
        if settings.late == "use":
            raise UserError("runtime.late = 'use' takes updates of weights: leave it out where scores are federated")
        self.setup, self.full_work = setup, setup.algorithm.local.full_work
        self.samples, self.labels = len(setup.public.x), len(setup.federation.labels)
        self.models = ScoreClients(setup, []) if setup.algorithm.start == "averaged" else None

    def label_sets(self, client_C: Tensor, t: int) -> list[Tensor]:
        return [torch.tensor(self.enrolled[c].labels, dtype=torch.int64) for c in client_C.tolist()]

    def wrong_introduction(self, node: int, head: State) -> str | None:
        said = head.get("labels")
        whole = isinstance(said, list) and all(type(label) is int and 0 <= label < self.labels for label in said)
        if not whole or not said or said != sorted(set(said)):
            return "its labels are not labels of the public samples"
        return super().wrong_introduction(node, head)

    def build(self, request: BuildRequest) -> BuildAnswer:
        common = pack({"t": request.t, "lr": request.lr, "averages": request.averages})

        def parts(client: Client, seconds: float) -> Parts:
            return question("work", client.standing(self.run)) | {COMMON: common}

        work = Work(request.t, parts, self._built)
        done = RoundOfWork(self, request.client_C, work, {}).play()
        answer = BuildAnswer.nobody(self.full_work)
        for number in sorted(done):
            answer = answer.plus(done[number])
        return answer.among(request.client_C)

    def _built(self, client: Client, heard: Heard) -> BuildAnswer | None:
        """What a client has built; None where it did no work. It has as many samples as it enrolled with, or fewer;
        drawn anew in a round, there may be one of a label that has none by its share."""
        if REPLY not in heard.parts:
            return None
        labels, most = client.labels, client.examples + len(client.labels)
        shape, softmax = (self.samples, len(labels)), self.setup.algorithm.scores == "softmax"
        kind = Rows(shape, low=0.0, high=1.0) if softmax else Rows(shape)
        tree = border.scores(heard.parts[REPLY], client.number, labels, kind, self.full_work, most)
        return wire.build_answer_of(tree)

    def learn(self, request: LearnRequest) -> Sequence[LearnReply]:
        tree = wire.learn_request_tree(request)
        common = pack({"t": request.t, "open": tree["open"], "tested": tree["tested"]})
        clients, parts = [self.enrolled[c] for c in request.client_C.tolist()], {}
        for client in clients:
            own = pack({"mean": {str(client.number): request.mean[client.number]}})
            parts[client.number] = question("learn", client.standing(self.run)) | {COMMON: common, OWN: own}
        found = self.survey("learn", clients, parts, partial(self._learnt, request))
        for number in found:
            self.enrolled[number].used = request.t
        return [found[number] for number in sorted(found)]

    def _learnt(self, request: LearnRequest, client: Client, heard: Heard) -> LearnReply:
        weights, tested = self._weights(client, request.t), _count(request.tested_R)
        tree = border.learnt(heard.parts[REPLY], client.number, len(client.labels), tested, weights)
        (reply,) = wire.learn_replies_of(tree)
        return reply

    def _weights(self, client: Client, t: int) -> Averages:
        """What a client sends of its model after it has learnt: names and shapes."""
        if self.models is None:
            return {}
        set_l = torch.tensor(client.labels)
        architecture = self.models.architectures.of(client.number, t, len(set_l))
        return sent_by(architecture, [set_l], architecture.fresh(t, 1))[0]

    def forget(self, client_I: Tensor) -> None:
        for c in client_I.tolist():
            self.enrolled[c].used = NEVER

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        clients, common = [self.enrolled[c] for c in client_C.tolist()], pack({"tested": tested_R})
        parts = {c.number: question("measure", c.standing(self.run)) | {COMMON: common} for c in clients}

        def read(client: Client, heard: Heard) -> OwnOutput:
            tree = border.outputs(heard.parts[REPLY], client.number, self.labels, _count(tested_R))
            (own,) = wire.own_outputs_of(tree)
            return own

        return list(self.survey("measure", clients, parts, read).values())

    def describe(self) -> dict[str, Any]:
        return self.setup.place.describe() | {"engine": "on devices", "chunk": 1, "threads": 1}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        return {"cohort": 8 * self.samples * self.labels * cohort}


def _count(tested_R: Tensor) -> int:
    return int(tested_R.sum()) if tested_R.dtype == torch.bool else len(tested_R)


class ScoreDevice(Device):
    """A device with a model of its own, which scores public samples."""

    def __init__(self, identity: Identity, setup: ScoreSetup, folder: Path, policy: Policy | None = None):
        super().__init__(identity, folder, policy)
        unlabelled = replace(setup.public, y_R=setup.public.y_R.new_full((len(setup.public.x),), -1))
        self.make = partial(ScoreClients, replace(setup, public=unlabelled))
        self.public: Public = setup.public
        self.clients: ScoreClients | None = None
        self.examples = int(setup.federation.examples(torch.tensor([0]))[0])

    def questions(self) -> dict[str, Answering]:
        return {"work": self._build, "learn": self._learn, "measure": self._measure}

    def introduction(self) -> dict[str, Any]:
        return {"examples": self.examples, "labels": self.public.label_set(0, 0).tolist()}

    def _place(self, run: str, t: int) -> Path:
        return self.folder / "rows" / run / f"{t:07d}"

    def settle(self, standing: Standing) -> bool:
        """Go to the model of the last scores that were used."""
        if standing == self.standing and self.clients is not None:
            return True
        self.clients, self.standing = self.make([standing.client]), standing
        if standing.used > NEVER:
            place = self._place(standing.run, standing.used)
            try:
                self.clients.load(place, json.loads((place / "files.json").read_text()))
            except (OSError, ValueError):
                self.standing = None
                return False
        for place in self._place(standing.run, 0).parent.glob("*"):
            if not standing.durable <= int(place.name) <= standing.used:
                shutil.rmtree(place)
        return True

    def _at_work(self) -> ScoreClients:
        assert self.clients is not None
        return self.clients

    def _build(self, head: State, standing: Standing, parts: Parts) -> Parts:
        tree = unpack(parts[COMMON]) | {"client": torch.tensor([standing.client])}
        answer = self._at_work().build(wire.build_request_of(tree), torch.ones(1, dtype=torch.float64))
        if not answer.replies:
            return self.said(standing)
        return self.said(standing) | {REPLY: pack(wire.build_answer_tree(answer))}

    def _learn(self, head: State, standing: Standing, parts: Parts) -> Parts:
        request = wire.learn_request_of(unpack(parts[COMMON]) | unpack(parts[OWN]))
        replies = self._at_work().learn(request)
        if not replies:
            return self.said(standing)
        place = self._place(standing.run, request.t)
        shutil.rmtree(place, ignore_errors=True)
        files = self._at_work().save(place, "rows", [])
        write_whole(place / "files.json", json.dumps(files))
        self.standing = replace(standing, used=request.t)
        return self.said(standing) | {REPLY: pack(wire.learn_replies_tree(replies))}

    def _measure(self, head: State, standing: Standing, parts: Parts) -> Parts:
        found = self._at_work().measure(torch.tensor([standing.client]), unpack(parts[COMMON])["tested"])
        if not found:
            return self.said(standing)
        return self.said(standing) | {REPLY: pack(wire.own_outputs_tree(found))}
