"""Where clients of the score track work: simulated in this process and in others (runtimes/parted.py), or on devices
(runtimes/remote.py).

The server's process holds the models of simulated clients. Those that a client continues with travel with the first
question; a worker holds what it has built until the second, and what clients then keep returns with the replies. A
worker that gets the second question without the first (the one that built has died) builds again: every draw is
addressed, so it builds the same.

A device's model never leaves it. What it has built waits in its memory until the server reports that its scores were
used, so its process has to stay (`turnout device run`); what it has learnt is on its disk before it answers.

Shape letters: C clients of the cohort, c those of one part, I any clients, R public samples, T those tested on, l
labels of one client.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.engine.trainers import place_of
from turnout.errors import UserError
from turnout.machine.files import write_whole
from turnout.running.tracks.track import ON_ITS_DEVICE
from turnout.runtimes.border import COUNT, FLOATS, WHOLE, Flag, Maybe, Number, Refused, RowSchema, Whole, read
from turnout.runtimes.crew import RemoteWorkers
from turnout.runtimes.inprocess import SimulatedWorld
from turnout.runtimes.parted import NoWorkers, dealt, workers_of
from turnout.runtimes.processes import divided
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
    BuildAnswer,
    BuildRequest,
    LearnRequest,
    OwnOutput,
    ScoreRuntime,
    ScoreSetup,
    records_of,
    tree_of,
)
from turnout.settings import InProcess, Processes, Ray
from turnout.types import State, Tensors, unflatten

NOISED = "noised.safetensors"  # in a device's folder: how often it has sent noised scores, and the last of them


def open_runtime(setup: ScoreSetup) -> ScoreRuntime:
    """The runtime that settings name, or that `open_scores(setup)` of a user's own settings makes."""
    settings: Any = setup.experiment.runtime
    if isinstance(settings, InProcess):
        return LocalScores(setup, NoWorkers())
    if isinstance(settings, Processes):
        settings = divided(settings)
        setup = replace(setup, experiment=setup.experiment.but(runtime=settings))
    if isinstance(settings, Processes | Ray):
        return LocalScores(setup, workers_of(settings, ScoreWorker, lambda: setup))
    if hasattr(settings, "open_scores"):
        found: ScoreRuntime = settings.open_scores(setup)
        return found
    if hasattr(settings, "connect"):
        return DeviceScores(setup, settings)
    raise UserError(f"runtime {settings!r} is not known to the score track: use turnout.InProcess()")


class LocalScores(SimulatedWorld):
    """Clients that work in this process, and with workers in others too; their models are here."""

    def __init__(self, setup: ScoreSetup, workers: RemoteWorkers | NoWorkers):
        super().__init__(setup.experiment, setup.federation, setup.calendar)
        clients = self.clients = ScoreClients(setup)
        self.forget, self.measure, self.own_module = clients.forget, clients.measure, clients.own_module
        self.save, self.memory, self.workers = clients.save, clients.memory, workers
        self.algorithm, self.close = setup.algorithm, workers.close
        self._parts: list[tuple[Tensor, State]] = []  # of the round, elsewhere: whose, and the first question

    def label_sets(self, client_C: Tensor, t: int) -> list[Tensor]:
        return [self.clients.label_set(client, t) for client in client_C.tolist()]

    def build(self, request: BuildRequest) -> BuildAnswer:
        fraction_C, found = self.fractions(request.client_C, request.t), list[BuildAnswer]()
        there = (fraction_C > 0).nonzero().squeeze(1)
        places = [there[place] for place in dealt(len(there), self.workers.parts)]
        self._parts = []
        for place in places[self.workers.here :]:
            asked = replace(request, client_C=request.client_C[place])
            kept = self.clients.kept_by(asked.client_C) if self.algorithm.start == "carried" else {}
            part = {"name": secrets.token_hex(8), "request": vars(asked), "fraction": fraction_C[place], "kept": kept}
            self._parts.append((asked.client_C, part))

        def meanwhile() -> None:
            for place in places[: self.workers.here]:
                here = replace(request, client_C=request.client_C[place])
                found.append(self.clients.build(here, fraction_C[place]))

        answers = self.workers.each("build", {}, [part for _, part in self._parts], meanwhile)
        found += map(BuildAnswer.of, answers)
        return BuildAnswer.join(found, request.client_C, self.algorithm.local.full_work)

    def learn(self, request: LearnRequest) -> Sequence[OwnOutput]:
        parts, self._parts, replies = self._parts, [], list[OwnOutput]()
        away = {client for client_c, _ in parts for client in client_c.tolist()}
        here = request.among(client for client in request.mean if client not in away)
        asked = [{"built": built, "request": request.among(c.tolist()).to_tree()} for c, built in parts]

        def meanwhile() -> None:
            replies.extend(self.clients.learn(here))

        for answer in self.workers.each("learn", {}, asked, meanwhile):
            self.clients.remember(answer["kept"])
            replies += records_of(OwnOutput, answer["replies"])
        return sorted(replies, key=lambda reply: reply.client)

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        self.clients.load(folder, files)

    def durable(self, t: int) -> None:
        """Rows are read back from files that the checkpoint names: nothing else has to be kept."""

    def describe(self) -> dict[str, Any]:
        return self.clients.describe() | self.workers.about


class ScoreWorker:
    """The other side: `ScoreClients` that remember a part from its first question to its second, and no longer."""

    def __init__(self, setup: ScoreSetup, compute: InProcess):
        experiment, place = setup.experiment.but(runtime=compute), place_of(compute)
        self.clients = ScoreClients(replace(setup, experiment=experiment, place=place))
        self.built = ""

    def build(self, common: State, part: State) -> State:
        self.clients.clear()
        self.clients.remember(part["kept"])
        self.built = part["name"]
        return self.clients.build(BuildRequest(**part["request"]), part["fraction"]).to_tree()

    def learn(self, common: State, part: State) -> State:
        if part["built"]["name"] != self.built:
            self.build(common, part["built"])
        request = LearnRequest.of(part["request"])
        replies = self.clients.learn(request)
        return {"replies": tree_of(replies), "kept": self.clients.kept_by(request.client_C, request.t)}


# -- real devices


class DeviceScores:
    """The server's side. Labels are those that devices enrolled with."""

    def __init__(self, setup: ScoreSetup, settings: Any):
        self.setup, self.full_work = setup, setup.algorithm.local.full_work
        self.samples, self.names_of_labels = len(setup.public.x), setup.federation.labels
        devices: RemoteClients = settings.connect(setup.experiment, setup.federation, self.wrong_labels)
        self.devices, self.names, self.examples, self.events = devices, devices.names, devices.examples, devices.events
        self.noted, self.save, self.load = devices.noted, devices.save, devices.load
        self.durable, self.close = devices.durable, devices.close

    def wrong_labels(self, head: State) -> str | None:
        """Why a device's introduction is refused."""
        own = head.get("labels")
        if own and own == sorted(set(own)) and own[-1] < len(self.names_of_labels):
            return None
        return "its labels are not labels of the public samples"

    def label_sets(self, client_C: Tensor, t: int) -> list[Tensor]:
        return [torch.tensor(self.devices.labels(c), dtype=torch.int64) for c in client_C.tolist()]

    def build(self, request: BuildRequest) -> BuildAnswer:
        common = pack({"t": request.t, "lr": request.lr})
        task = DeviceTask("work", lambda client, seconds: ({}, {COMMON: common}), self._built, request.t)
        done = self.devices.work(request.client_C, task)
        return BuildAnswer.join((done[client] for client in sorted(done)), request.client_C, self.full_work)

    def _built(self, client: int, answer: RemoteAnswer) -> BuildAnswer:
        """What a client has built. It has as many samples as it enrolled with, or fewer; if they are drawn in every
        round, there may be one of a label that has none by its share."""
        labels = self.devices.labels(client)
        most = int(self.devices.examples(torch.tensor([client]))[0]) + len(labels)
        shape, algorithm = (self.samples, len(labels)), self.setup.algorithm
        softmax = algorithm.scores == "softmax" and algorithm.client_noise is None
        kind = RowSchema(shape, low=0.0, high=1.0) if softmax else RowSchema(shape)
        return read_scores(answer.parts[REPLY], client, labels, kind, self.full_work, most)

    def learn(self, request: LearnRequest) -> Sequence[OwnOutput]:
        common = pack({"t": request.t, "open_R": request.open_R, "tested_R": request.tested_R})

        def message(client: int, seconds: float) -> tuple[State, Parts]:
            return {}, {COMMON: common, OWN: pack({"mean": {str(client): request.mean[client]}})}

        def read(client: int, answer: RemoteAnswer) -> OwnOutput:
            found = read_output(answer.parts[REPLY], client, len(self.names_of_labels), _count(request.tested_R))
            if tuple(found.set_l.tolist()) != self.devices.labels(client):
                raise Refused("it has learnt other labels than its own")
            return found

        found = self.devices.survey(request.client_C, DeviceTask("learn", message, read))
        self.devices.mark_used(torch.tensor(sorted(found), dtype=torch.int64), request.t)
        return [found[client] for client in sorted(found)]

    def forget(self, client_I: Tensor) -> None:
        self.devices.mark_used(client_I, NEVER)

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        parts, labels = {COMMON: pack({"tested": tested_R})}, len(self.names_of_labels)

        def read(client: int, answer: RemoteAnswer) -> OwnOutput:
            found = read_output(answer.parts[REPLY], client, labels, _count(tested_R))
            if found.output_Tl is None:
                raise Refused("its answer has no output")
            return found

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
        f"{own}/loss": Number(), f"{own}/finite": Flag(), f"{own}/weight_bytes": Whole(),
        **{f"{own}/{name}": Number(0.0) for name in ("epochs", "training", "scoring")},
    })  # fmt: skip
    if found[f"{own}/set_l"].tolist() != list(set_l):
        raise Refused("its scores are of other labels than its own")
    if not found[f"{own}/finite"]:
        raise Refused("its training was not finite")
    return BuildAnswer.of(unflatten({}, found))


def read_output(message: bytes, client: int, labels: int, tested: int) -> OwnOutput:
    """The output of one client's latest model, if it has sent it; there are so many labels in all."""
    found = read(message, {
        f"{client}/client": Whole(client, client), f"{client}/set_l": RowSchema((None,), WHOLE, 0, labels - 1),
        f"{client}/output_Tl": Maybe(RowSchema((tested, None))),
    })  # fmt: skip
    (answer,) = records_of(OwnOutput, unflatten({}, found))
    set_l = answer.set_l.tolist()
    columns = len(set_l) if answer.output_Tl is None else answer.output_Tl.shape[1]
    if set_l != sorted(set(set_l)) or columns != len(set_l):
        raise Refused("its output is not one column a label")
    return answer


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
        self.private = setup.algorithm.client_noise
        if self.private is not None:  # the server receives noised scores alone
            self.tasks = {"work": self._build_noised, "learn": self._learn}

    def introduction(self) -> State:
        examples = 1 if self.private is not None else int(self.setup.federation.examples(torch.tensor([0]))[0])
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
        about = {"client_C": torch.tensor([standing.client]), "key": secrets.randbits(256)}  # of noise, if it adds any
        request = BuildRequest(**unpack(parts[COMMON]) | about)
        answer = self.clients.build(request, torch.ones(1, dtype=torch.float64))
        return {}, answer.to_tree() if answer.replies else None

    def _build_noised(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        """The same where the device adds the noise, which does not trust the server: it counts its messages itself, and
        answers a question that comes again as it did before, never with other noise or other scores."""
        assert self.private is not None
        path, asked = self.folder / NOISED, [standing.run, standing.client, int(unpack(parts[COMMON])["t"])]
        kept: State = unpack(path.read_bytes()) if path.exists() else {"sent": 0, "asked": None}
        again = kept["asked"] == asked
        if not again and kept["sent"] >= self.private.participations:
            return {"error": f"it has sent noised scores {kept['sent']} times, as often as algorithm.privacy allows: "
                    f"delete {NOISED} in its folder to allow as many again, at the same ε each time"}, None  # fmt: skip
        _, answer = self._build(head, standing, parts)  # again too: the model is needed to learn
        if again:
            return {}, kept["answer"]
        if answer is None or not all(reply["finite"] for reply in answer["replies"].values()):
            return {}, None
        write_whole(path, pack({"sent": kept["sent"] + 1, "asked": asked, "answer": answer}))
        return {}, answer

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
