"""A runtime of the score track whose clients live in other processes; they share nothing with the server but bytes.

`python bytes_scores.py` is such a process, as in bytes_runtime.py: the first message of a run is the experiment and
which clients live there; it loads their data itself.

Shape letters: C clients of the cohort, I any clients.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

import turnout as to
from bytes_runtime import BytesOnly, ClientsAtHome, Process, living_at, serve
from turnout.running.config.read import from_table
from turnout.running.config.write import to_toml
from turnout.running.tracks.building import enrolment_of
from turnout.scores import wire
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnReply, LearnRequest, OwnOutput
from turnout.scores.inprocess import SimulatedScores
from turnout.scores.prepare import set_up
from turnout.scores.setup import ScoreSetup
from turnout.types import State


def score_process() -> Process:
    return Process(__file__)


@dataclass(frozen=True)
class ScoresByBytes(BytesOnly):
    """Clients in other processes, reached by bytes."""

    def open_scores(self, setup: ScoreSetup) -> BytesScores:
        return BytesScores(setup, self.processes, self.compute)


class BytesScores(SimulatedScores):
    """The server's side: it draws the turnout and knows labels and sample counts; it has no samples and no models."""

    simulation = None

    def __init__(self, setup: ScoreSetup, processes: Sequence[Process], compute: to.runtime.InProcess):
        super().__init__(setup)
        self.processes, self.full_work = processes, setup.algorithm.local.full_work
        text = to_toml(setup.experiment.but(runtime=compute))
        for i, process in enumerate(processes):
            process.ask("open", experiment=text, residue=i, processes=len(processes))

    def build(self, request: BuildRequest) -> BuildAnswer:
        fraction_C, parts = self.fractions(request.client_C, request.t), living_at(self.processes, request.client_C)
        for process, place in parts:
            own = wire.build_request_tree(request.among(request.client_C[place]))
            process.send("build", request=own, fraction=fraction_C[place])
        answer = BuildAnswer.nobody(self.full_work)
        for process, _ in parts:
            answer = answer.plus(wire.build_answer_of(process.answer()))
        return answer.among(request.client_C)

    def learn(self, request: LearnRequest) -> Sequence[LearnReply]:
        parts = living_at(self.processes, request.client_C)
        for process, place in parts:
            process.send("learn", request=wire.learn_request_tree(request.among(request.client_C[place])))
        replies = [reply for process, _ in parts for reply in wire.learn_replies_of(process.answer()["replies"])]
        return sorted(replies, key=lambda reply: reply.client)

    def forget(self, client_I: Tensor) -> None:
        for process, place in living_at(self.processes, client_I):
            process.ask("forget", client=client_I[place])

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        asks = [
            p.ask("measure", client=client_C[place], tested=tested_R)
            for p, place in living_at(self.processes, client_C)
        ]
        return [own for answer in asks for own in wire.own_outputs_of(answer["outputs"])]

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        """Each process writes files of its own."""
        found = []
        for i, process in enumerate(self.processes):
            own = [f for f in files if f"-p{i}-" in f]
            found += process.ask("save", folder=str(folder), mark=f"{mark}-p{i}", files=own)["files"]
        return found

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        for i, process in enumerate(self.processes):
            process.ask("load", folder=str(folder), files=[f for f in files if f"-p{i}-" in f])

    def describe(self) -> dict[str, Any]:
        return self.processes[0].ask("describe")

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        return self.processes[0].ask("memory", cohort=cohort, ever=ever)


class Home(ClientsAtHome):
    """The process that clients live in."""

    def open(self, experiment: str, residue: int, processes: int) -> State:
        given = from_table(tomllib.loads(experiment))
        federation = given.world.data.load(given.seed, None)
        setup = set_up(given, federation, enrolment_of(federation))
        unlabelled = replace(setup.public, y_R=setup.public.y_R.new_full((len(setup.public.x),), -1))
        self.residue, self.processes = residue, processes
        mine = range(residue, federation.clients, processes)
        self.clients = ScoreClients(replace(setup, public=unlabelled), mine)
        return {}

    def build(self, request: State, fraction: Tensor) -> State:
        asked = wire.build_request_of(request)
        self._only_mine(asked.client_C)
        return wire.build_answer_tree(self.clients.build(asked, fraction))

    def learn(self, request: State) -> State:
        asked = wire.learn_request_of(request)
        self._only_mine(asked.client_C)
        return {"replies": wire.learn_replies_tree(self.clients.learn(asked))}

    def measure(self, client: Tensor, tested: Tensor) -> State:
        return {"outputs": wire.own_outputs_tree(self.clients.measure(self._only_mine(client), tested))}


if __name__ == "__main__":
    serve(Home())
