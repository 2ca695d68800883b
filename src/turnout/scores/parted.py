"""Parts of a cohort of the score track for workers elsewhere, as runtimes/parted.py has them for weights.

The server's process holds the clients' models. Those that a client continues with travel with the first question; a
worker holds what it has built until the second, and what clients then keep comes back with the replies. A worker that
gets the second question without having heard the first (the one that built has died) builds again: every draw is
addressed, so it builds the same.

Shape letters: C clients asked, c those of one part.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from turnout.engine.trainers import place_of
from turnout.runtimes.parted import Workers, dealt
from turnout.runtimes.processes import divided
from turnout.runtimes.table import workers_of
from turnout.scores import wire
from turnout.scores.architectures import Architectures
from turnout.scores.client_models import ROUND
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnReply, LearnRequest
from turnout.scores.inprocess import InProcessScores
from turnout.scores.setup import ScoreSetup
from turnout.settings import InProcess, Processes, Ray
from turnout.types import State, flatten


class PartedScores(InProcessScores):
    """The server's side: everything is as in one process, but that parts of a cohort are worked on elsewhere."""

    def __init__(self, setup: ScoreSetup, workers: Workers):
        super().__init__(setup)
        self.workers, self.carries = workers, setup.algorithm.start == "carried"
        self._parts: list[tuple[Tensor, State]] = []  # of the round: whose, and what was asked first

    def build(self, request: BuildRequest) -> BuildAnswer:
        fraction_C = self.fractions(request.client_C, request.t)
        there = (fraction_C > 0).nonzero().squeeze(1)
        places = [there[place] for place in dealt(len(there), self.workers.parts)]
        here, away = places[: self.workers.here], places[self.workers.here :]
        self._parts = [(request.client_C[p], self._part(request, request.client_C[p], fraction_C[p])) for p in away]
        found: list[BuildAnswer] = []

        def meanwhile() -> None:
            own = [(request.among(request.client_C[place]), fraction_C[place]) for place in here]
            found.extend(self.clients.build(*part) for part in own)

        common = {"averages": request.averages}
        found += map(wire.build_answer_of, self.workers.each("build", common, [p for _, p in self._parts], meanwhile))
        answer = BuildAnswer.nobody(self.experiment.algorithm.local.full_work)
        for part in found:
            answer = answer.plus(part)
        self._averages = common
        return answer.among(request.client_C)

    def _part(self, request: BuildRequest, client_c: Tensor, fraction_c: Tensor) -> State:
        tree = wire.build_request_tree(request.among(client_c))
        kept = kept_by(self.clients.architectures, client_c) if self.carries else {}
        named = {name: value for name, value in tree.items() if name != "averages"}
        return {"name": secrets.token_hex(8), "request": named, "fraction": fraction_c, "kept": kept}

    def learn(self, request: LearnRequest) -> Sequence[LearnReply]:
        parts = [
            {"built": built, "request": wire.learn_request_tree(request.among(client_c))}
            for client_c, built in self._parts
        ]
        replies: list[LearnReply] = []
        answers = self.workers.each(
            "learn", self._averages, parts, lambda: replies.extend(self.clients.learn(self._mine(request)))
        )
        for answer in answers:
            remember(self.clients.architectures, answer["kept"])
            replies += wire.learn_replies_of(answer["replies"])
        self._parts = []
        return sorted(replies, key=lambda reply: reply.client)

    def _mine(self, request: LearnRequest) -> LearnRequest:
        """Of those asked, the clients that this process has built for."""
        away = {client for client_c, _ in self._parts for client in client_c.tolist()}
        return replace(request, mean={client: mean for client, mean in request.mean.items() if client not in away})

    def close(self) -> None:
        self.workers.close()

    def describe(self) -> dict[str, object]:
        return super().describe() | self.workers.describe()


class ScoreWorker:
    """The other side: `ScoreClients` that remember a part from its first question to its second, and no longer."""

    def __init__(self, setup: ScoreSetup, compute: InProcess):
        experiment, place = setup.experiment.but(runtime=compute), place_of(compute)
        self.clients = ScoreClients(replace(setup, experiment=experiment, place=place))
        self.built = ""

    def build(self, common: State, part: State) -> State:
        architectures = self.clients.architectures
        for architecture in architectures.made.values():
            architecture.store.clear()
        remember(architectures, part["kept"])
        request = wire.build_request_of(part["request"] | common)
        self.built = part["name"]
        return wire.build_answer_tree(self.clients.build(request, part["fraction"]))

    def learn(self, common: State, part: State) -> State:
        if part["built"]["name"] != self.built:
            self.build(common, part["built"])
        request = wire.learn_request_of(part["request"])
        replies = self.clients.learn(request)
        kept = kept_by(self.clients.architectures, request.client_C, request.t)
        return {"replies": wire.learn_replies_tree(replies), "kept": kept}


def kept_by(architectures: Architectures, client_c: Tensor, t: int | None = None) -> State:
    """What these clients have, by architecture: all of it, or what is of round t."""
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
    """Keep what `kept_by` has said elsewhere."""
    for found in kept.values():
        architecture = architectures.make(found["number"], found["labels"])
        architecture.keep(found["client"], flatten(found["rows"])[0])


def scores_in_parts(setup: ScoreSetup) -> PartedScores:
    """A runtime that deals parts of each cohort out."""
    settings = setup.experiment.runtime
    if isinstance(settings, Processes):
        settings = divided(settings)
        setup = replace(setup, experiment=setup.experiment.but(runtime=settings))
    assert isinstance(settings, Processes | Ray)
    return PartedScores(setup, workers_of(settings, ScoreWorker, lambda: setup))
