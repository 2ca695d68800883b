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
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnRequest, OwnOutput, ScoreSetup, records_of, tree_of
from turnout.settings import InProcess, Processes, Ray
from turnout.types import State


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
        return self.clients.describe() | self.workers.describe()


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


def open_scores(setup: ScoreSetup) -> LocalScores:
    """The runtime of simulated clients that settings name."""
    settings = setup.experiment.runtime
    if isinstance(settings, Processes):
        settings = divided(settings)
        setup = replace(setup, experiment=setup.experiment.but(runtime=settings))
    if isinstance(settings, Processes | Ray):
        return LocalScores(setup, workers_of(settings, ScoreWorker, lambda: setup))
    return LocalScores(setup, NoWorkers())
