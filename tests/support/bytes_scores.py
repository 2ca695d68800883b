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
from turnout.running.tracks.track import ON_ITS_DEVICE
from turnout.runtimes.inprocess import SimulatedWorld
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import (
    BuildAnswer,
    BuildRequest,
    LearnRequest,
    OwnOutput,
    ScoreSetup,
    records_of,
    tree_of,
)
from turnout.scores.track import set_up
from turnout.types import State


def score_process() -> Process:
    return Process(__file__)


@dataclass(frozen=True)
class ScoresByBytes(BytesOnly):
    """Clients in other processes, reached by bytes."""

    def open_scores(self, setup: ScoreSetup) -> BytesScores:
        return BytesScores(setup, self.processes, self.compute)


class BytesScores(SimulatedWorld):
    """The server's side: it draws the turnout and knows labels and sample counts; it has no samples and no models."""

    def __init__(self, setup: ScoreSetup, processes: Sequence[Process], compute: to.runtime.InProcess):
        super().__init__(setup.experiment, setup.federation, setup.calendar)
        self.processes, self.public, self.full_work = processes, setup.public, setup.algorithm.local.full_work
        text = to_toml(setup.experiment.but(runtime=compute))
        for i, process in enumerate(processes):
            process.ask("open", experiment=text, residue=i, processes=len(processes))

    def label_sets(self, client_C: Tensor, t: int) -> list[Tensor]:
        return [self.public.label_set(client, t) for client in client_C.tolist()]

    def durable(self, t: int) -> None:
        """Nothing has to be kept."""

    def close(self) -> None:
        """The processes belong to the test."""

    def build(self, request: BuildRequest) -> BuildAnswer:
        fraction_C, parts = self.fractions(request.client_C, request.t), living_at(self.processes, request.client_C)
        for process, place in parts:
            own = vars(replace(request, client_C=request.client_C[place]))
            process.send("build", request=own, fraction=fraction_C[place])
        answers = [BuildAnswer.of(process.answer()) for process, _ in parts]
        return BuildAnswer.join(answers, request.client_C, self.full_work)

    def learn(self, request: LearnRequest) -> Sequence[OwnOutput]:
        parts = living_at(self.processes, request.client_C)
        for process, place in parts:
            process.send("learn", request=request.among(request.client_C[place].tolist()).to_tree())
        replies = [reply for process, _ in parts for reply in records_of(OwnOutput, process.answer()["replies"])]
        return sorted(replies, key=lambda reply: reply.client)

    def forget(self, client_I: Tensor) -> None:
        for process, place in living_at(self.processes, client_I):
            process.ask("forget", client=client_I[place])

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        asks = [
            p.ask("measure", client=client_C[place], tested=tested_R)
            for p, place in living_at(self.processes, client_C)
        ]
        return [own for answer in asks for own in records_of(OwnOutput, answer["outputs"])]

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

    def own_module(self, client: int) -> Any:
        raise to.UserError(ON_ITS_DEVICE)

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
        asked = BuildRequest(**request)
        self._only_mine(asked.client_C)
        return self.clients.build(asked, fraction).to_tree()

    def learn(self, request: State) -> State:
        asked = LearnRequest.of(request)
        self._only_mine(asked.client_C)
        return {"replies": tree_of(self.clients.learn(asked))}

    def measure(self, client: Tensor, tested: Tensor) -> State:
        return {"outputs": tree_of(self.clients.measure(self._only_mine(client), tested))}


if __name__ == "__main__":
    serve(Home())
