"""The score track on real devices: the server's side, and the device's (runtimes/remote.py).

A device's model never leaves it. What it has built waits in its memory until the server reports that its scores were
used, so its process has to stay (`turnout device run`); what it has learnt is on its disk before it answers.

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
from torch import Tensor, nn

from turnout.errors import UserError
from turnout.machine.files import write_whole
from turnout.running.tracks.track import ON_ITS_DEVICE
from turnout.runtimes.border import COUNT, FLOATS, WHOLE, Flag, Kind, Maybe, Number, Refused, RowSchema, Whole, read
from turnout.runtimes.remote import (
    COMMON,
    NEVER,
    OWN,
    REPLY,
    ClientStanding,
    DeviceTask,
    DoTask,
    Parts,
    RemoteAnswer,
    RemoteClients,
)
from turnout.runtimes.wire import pack, unpack
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import (
    Averages,
    BuildAnswer,
    BuildRequest,
    LearnReply,
    LearnRequest,
    OwnOutput,
    ScoreSetup,
    TimeSpent,
    records_of,
    tree_of,
)
from turnout.types import State, Tensors, unflatten


class DeviceScores:
    """The server's side. Labels are those that devices enrolled with."""

    def __init__(self, setup: ScoreSetup, settings: Any):
        if settings.late == "use":
            raise UserError("runtime.late = 'use' takes updates of weights: leave it out where scores are federated")
        self.setup, self.full_work = setup, setup.algorithm.local.full_work
        self.samples, self.names_of_labels = len(setup.public.x), setup.federation.labels
        devices: RemoteClients = settings.connect(setup.experiment, setup.federation, self.wrong_labels)
        self.devices, self.names, self.examples, self.events = devices, devices.names, devices.examples, devices.events
        self.noted, self.save, self.load = devices.noted, devices.save, devices.load
        self.durable, self.close = devices.durable, devices.close
        self.models = ScoreClients(setup, []) if setup.algorithm.start == "averaged" else None

    def wrong_labels(self, head: State) -> str | None:
        """Why a device's introduction is refused."""
        own = head.get("labels")
        if own and own == sorted(set(own)) and own[-1] < len(self.names_of_labels):
            return None
        return "its labels are not labels of the public samples"

    def label_sets(self, client_C: Tensor, t: int) -> list[Tensor]:
        return [torch.tensor(self.devices.labels(c), dtype=torch.int64) for c in client_C.tolist()]

    def build(self, request: BuildRequest) -> BuildAnswer:
        common = pack({"t": request.t, "lr": request.lr, "averages": request.averages})
        task = DeviceTask("work", lambda client, seconds: ({}, {COMMON: common}), self._built, request.t)
        done = self.devices.work(request.client_C, task)
        return BuildAnswer.join((done[client] for client in sorted(done)), request.client_C, self.full_work)

    def _built(self, client: int, answer: RemoteAnswer) -> BuildAnswer:
        """What a client has built. It has as many samples as it enrolled with, or fewer; if they are drawn in every
        round, there may be one of a label that has none by its share."""
        labels = self.devices.labels(client)
        most = int(self.devices.examples(torch.tensor([client]))[0]) + len(labels)
        shape, softmax = (self.samples, len(labels)), self.setup.algorithm.scores == "softmax"
        kind = RowSchema(shape, low=0.0, high=1.0) if softmax else RowSchema(shape)
        return read_scores(answer.parts[REPLY], client, labels, kind, self.full_work, most)

    def learn(self, request: LearnRequest) -> Sequence[LearnReply]:
        common = pack({"t": request.t, "open_R": request.open_R, "tested_R": request.tested_R})

        def message(client: int, seconds: float) -> tuple[State, Parts]:
            return {}, {COMMON: common, OWN: pack({"mean": {str(client): request.mean[client]}})}

        def read(client: int, answer: RemoteAnswer) -> LearnReply:
            set_l = torch.tensor(self.devices.labels(client))
            weights: Averages = {}  # names and shapes of what it sends of its model
            if self.models is not None:
                architecture = self.models.architectures.of(client, request.t, len(set_l))
                weights = architecture.weights([set_l], architecture.fresh(request.t, 1))[0]
            return read_learnt(answer.parts[REPLY], client, len(set_l), _count(request.tested_R), weights)

        found = self.devices.survey(request.client_C, DeviceTask("learn", message, read))
        self.devices.mark_used(torch.tensor(sorted(found), dtype=torch.int64), request.t)
        return [found[client] for client in sorted(found)]

    def forget(self, client_I: Tensor) -> None:
        self.devices.mark_used(client_I, NEVER)

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        parts, labels = {COMMON: pack({"tested": tested_R})}, len(self.names_of_labels)

        def read(client: int, answer: RemoteAnswer) -> OwnOutput:
            return read_output(answer.parts[REPLY], client, labels, _count(tested_R))

        task = DeviceTask("measure", lambda client, seconds: ({}, parts), read)
        return list(self.devices.survey(client_C, task).values())

    def own_module(self, client: int) -> nn.Module | None:
        raise UserError(ON_ITS_DEVICE)

    def describe(self) -> dict[str, Any]:
        return self.setup.place.describe() | {"engine": "on devices", "chunk": 1, "threads": 1}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        return {"cohort": 8 * self.samples * len(self.names_of_labels) * cohort}


# -- replies, read by typed schemas (runtimes/border.py): an answer that fails its schema is refused


def read_scores(
    message: bytes, client: int, set_l: Sequence[int], score_Rl: RowSchema, full_work: float, examples: int
) -> BuildAnswer:
    """The answer of one client to the first question, which may have so many examples at most."""
    own, some = f"replies/{client}", RowSchema((1,), FLOATS, 0, COUNT)
    found = read(message, {
        "turnout/client_C": RowSchema((1,), WHOLE, client, client),
        "turnout/work_C": RowSchema((1,), (torch.float64,), 1e-9, full_work),
        "turnout/full_work": Number(full_work, full_work),
        "turnout/progress_C": some, "turnout/full_progress_C": some, "turnout/times": Maybe(Number(1, 0)),
        f"{own}/client": Whole(client, client),
        f"{own}/set_l": RowSchema((len(set_l),), WHOLE),
        f"{own}/f_Rl": score_Rl,
        f"{own}/examples": Whole(1, examples),
        f"{own}/loss": Number(), f"{own}/epochs": Number(0.0), f"{own}/finite": Flag(), f"{own}/weight_bytes": Whole(),
        **{f"spent/{name}": Number(0.0) for name in vars(TimeSpent())},
    })  # fmt: skip
    if found[f"{own}/set_l"].tolist() != list(set_l):
        raise Refused("its scores are of other labels than its own")
    if not found[f"{own}/finite"]:
        raise Refused("its training was not finite")
    return BuildAnswer.of(unflatten({}, found))


def read_learnt(message: bytes, client: int, labels: int, tested: int, weights: Averages) -> LearnReply:
    """The answer of one client to the second question; `weights`: names and shapes of the weights it sends."""
    schema: dict[str, Kind] = {f"{client}/client": Whole(client, client)}
    schema[f"{client}/output_Tl"] = Maybe(RowSchema((tested, labels)))
    for where, named in weights.items():
        schema |= {f"{client}/weights/{where}/{name}": RowSchema(tuple(value.shape)) for name, value in named.items()}
    return records_of(LearnReply, unflatten({}, read(message, schema)))[0]


def read_output(message: bytes, client: int, labels: int, tested: int) -> OwnOutput:
    """The output of one client's latest model; there are so many labels in all."""
    found = read(message, {
        f"{client}/client": Whole(client, client), f"{client}/set_l": RowSchema((None,), WHOLE, 0, labels - 1),
        f"{client}/output_Tl": RowSchema((tested, None)),
    })  # fmt: skip
    set_l = found[f"{client}/set_l"].tolist()
    if set_l != sorted(set(set_l)) or found[f"{client}/output_Tl"].shape[1] != len(set_l):
        raise Refused("its output is not one column a label")
    return records_of(OwnOutput, unflatten({}, found))[0]


def _count(tested_R: Tensor) -> int:
    return int(tested_R.sum()) if tested_R.dtype == torch.bool else len(tested_R)


class ScoreTasks:
    """What a client of the score track does on its device: a model of its own, which scores public samples."""

    values = ""

    def __init__(self, setup: ScoreSetup, folder: Path):
        unlabelled = replace(setup.public, y_R=setup.public.y_R.new_full((len(setup.public.x),), -1))
        self.experiment, self.setup, self.folder = setup.experiment, setup, folder
        self.make = partial(ScoreClients, replace(setup, public=unlabelled))
        self.clients: ScoreClients | None = None
        self.standing: ClientStanding | None = None  # whose model is in memory
        self.tasks: dict[str, DoTask] = {"work": self._build, "learn": self._learn, "measure": self._measure}

    def introduction(self) -> State:
        examples = int(self.setup.federation.examples(torch.tensor([0]))[0])
        return {"examples": examples, "labels": self.setup.public.label_set(0, 0).tolist()}

    def holds(self, standing: ClientStanding) -> int:
        return NEVER

    def leaving_rows(self, standing: ClientStanding) -> Tensors | None:
        return None

    def _place(self, run: str, t: int) -> Path:
        return self.folder / "rows" / run / f"{t:07d}"

    def settle(self, standing: ClientStanding) -> bool:
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

    def _build(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        assert self.clients is not None
        request = BuildRequest(client_C=torch.tensor([standing.client]), **unpack(parts[COMMON]))
        answer = self.clients.build(request, torch.ones(1, dtype=torch.float64))
        return {}, answer.to_tree() if answer.replies else None

    def _learn(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        assert self.clients is not None
        request = LearnRequest.of(unpack(parts[COMMON]) | unpack(parts[OWN]))
        replies = self.clients.learn(request)
        if not replies:
            return {}, None
        place = self._place(standing.run, request.t)
        shutil.rmtree(place, ignore_errors=True)
        write_whole(place / "files.json", json.dumps(self.clients.save(place, "rows", [])))
        self.standing = replace(standing, used=request.t)
        return {}, tree_of(replies)

    def _measure(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        assert self.clients is not None
        found = self.clients.measure(torch.tensor([standing.client]), unpack(parts[COMMON])["tested"])
        return {}, tree_of(found) if found else None
