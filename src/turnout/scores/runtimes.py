"""Simulated clients of the score track: in this process, and in others (runtimes/parted.py).

The server's process holds the clients' models. Those that a client continues with travel with the first question; a
worker holds what it has built until the second, and what clients then keep returns with the replies. A worker that gets
the second question without the first (the one that built has died) builds again: every draw is addressed, so it builds
the same.

Shape letters: C clients of the cohort, c those of one part, I any clients.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from turnout.engine.trainers import place_of
from turnout.runtimes.crew import RemoteWorkers
from turnout.runtimes.inprocess import SimulatedWorld
from turnout.runtimes.parted import NoWorkers, dealt, workers_of
from turnout.runtimes.processes import divided
from turnout.scores.architectures import ROUND, Architectures
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import (
    BuildAnswer,
    BuildRequest,
    LearnReply,
    LearnRequest,
    ScoreSetup,
    records_of,
    tree_of,
)
from turnout.settings import InProcess, Processes, Ray
from turnout.types import State, flatten


class SimulatedScores(SimulatedWorld):
    """What every simulated runtime of the score track draws and knows: turnout, sample counts, labels, events."""

    def __init__(self, setup: ScoreSetup):
        super().__init__(setup.experiment, setup.federation, setup.calendar)
        self.public, self.full_work = setup.public, setup.algorithm.local.full_work

    def label_sets(self, client_C: Tensor, t: int) -> list[Tensor]:
        return [self.public.label_set(client, t) for client in client_C.tolist()]

    def durable(self, t: int) -> None:
        """Rows are read back from files that the checkpoint names: nothing else has to be kept."""

    def close(self) -> None:
        """There is nothing to release."""


class LocalScores(SimulatedScores):
    """Clients that work in this process, and with workers in others too; their models are here."""

    def __init__(self, setup: ScoreSetup, workers: RemoteWorkers | None = None):
        super().__init__(setup)
        clients = self.clients = ScoreClients(setup)
        self.forget, self.measure, self.own_module = clients.forget, clients.measure, clients.own_module
        self.save, self.memory, self.workers = clients.save, clients.memory, workers or NoWorkers()
        self.carries = setup.algorithm.start == "carried"
        self._parts: list[tuple[Tensor, State]] = []  # of the round, elsewhere: whose, and the first question
        self._averages: State = {}

    def build(self, request: BuildRequest) -> BuildAnswer:
        fraction_C, found = self.fractions(request.client_C, request.t), list[BuildAnswer]()
        there = (fraction_C > 0).nonzero().squeeze(1)
        places = [there[place] for place in dealt(len(there), self.workers.parts)]
        self._averages, self._parts = {"averages": request.averages}, []
        for place in places[self.workers.here :]:
            client_c = request.client_C[place]
            kept = kept_by(self.clients.architectures, client_c) if self.carries else {}
            asked = {"t": request.t, "lr": request.lr, "client_C": client_c}
            name = secrets.token_hex(8)
            part = {"name": name, "request": asked, "fraction": fraction_C[place], "kept": kept}
            self._parts.append((client_c, part))

        def meanwhile() -> None:
            for place in places[: self.workers.here]:
                here = replace(request, client_C=request.client_C[place])
                found.append(self.clients.build(here, fraction_C[place]))

        answers = self.workers.each("build", self._averages, [part for _, part in self._parts], meanwhile)
        found += map(BuildAnswer.of, answers)
        return BuildAnswer.join(found, request.client_C, self.full_work)

    def learn(self, request: LearnRequest) -> Sequence[LearnReply]:
        parts, self._parts, replies = self._parts, [], list[LearnReply]()
        away = {client for client_c, _ in parts for client in client_c.tolist()}
        here = request.among(client for client in request.mean if client not in away)
        asked = [{"built": built, "request": request.among(c.tolist()).to_tree()} for c, built in parts]

        def meanwhile() -> None:
            replies.extend(self.clients.learn(here))

        for answer in self.workers.each("learn", self._averages, asked, meanwhile):
            remember(self.clients.architectures, answer["kept"])
            replies += records_of(LearnReply, answer["replies"])
        return sorted(replies, key=lambda reply: reply.client)

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        self.clients.load(folder, files)

    def close(self) -> None:
        self.workers.close()

    def describe(self) -> dict[str, Any]:
        return self.clients.describe() | self.workers.about


class ScoreWorker:
    """The other side: `ScoreClients` that remember a part from its first question to its second, and no longer."""

    def __init__(self, setup: ScoreSetup, compute: InProcess):
        experiment, place = setup.experiment.but(runtime=compute), place_of(compute)
        self.clients = ScoreClients(replace(setup, experiment=experiment, place=place))
        self.built = ""

    def build(self, common: State, part: State) -> State:
        for architecture in self.clients.architectures.made.values():
            architecture.store.clear()
        remember(self.clients.architectures, part["kept"])
        self.built = part["name"]
        return self.clients.build(BuildRequest(**part["request"], **common), part["fraction"]).to_tree()

    def learn(self, common: State, part: State) -> State:
        if part["built"]["name"] != self.built:
            self.build(common, part["built"])
        request = LearnRequest.of(part["request"])
        replies = self.clients.learn(request)
        kept = kept_by(self.clients.architectures, request.client_C, request.t)
        return {"replies": tree_of(replies), "kept": kept}


def kept_by(architectures: Architectures, client_c: Tensor, t: int | None = None) -> State:
    """The rows of these clients, by architecture: all of them, or those of round t."""
    found: State = {}
    for (number, labels), architecture in architectures.made.items():
        client_k = client_c[architecture.store.knows(client_c)]
        rows = architecture.store.gather(client_k)
        of_k = (rows[ROUND] == t) if t is not None else rows[ROUND] >= 0
        if bool(of_k.any()):
            own = {name: value[of_k.to(value.device)] for name, value in rows.items()}
            found[architecture.key] = {"number": number, "labels": labels, "client": client_k[of_k], "rows": own}
    return found


def remember(architectures: Architectures, kept: State) -> None:
    """Keep rows that `kept_by` returned elsewhere."""
    for found in kept.values():
        architecture = architectures.make(found["number"], found["labels"])
        architecture.keep(found["client"], flatten(found["rows"])[0])


def scores_in_parts(setup: ScoreSetup) -> LocalScores:
    """A runtime that works on parts of each cohort elsewhere."""
    settings = setup.experiment.runtime
    if isinstance(settings, Processes):
        settings = divided(settings)
        setup = replace(setup, experiment=setup.experiment.but(runtime=settings))
    assert isinstance(settings, Processes | Ray)
    return LocalScores(setup, workers_of(settings, ScoreWorker, lambda: setup))
