"""The default runtime of the score track: every client simulated in this process.

Shape letters: C clients of the cohort, I any clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from turnout.runtimes.inprocess import SimulatedWorld
from turnout.scores.clients import ScoreClients
from turnout.scores.exchange import (
    BuildAnswer,
    BuildRequest,
    LearnReply,
    LearnRequest,
    OwnOutput,
    ScoreSimulation,
)
from turnout.scores.setup import ScoreSetup


class SimulatedScores(SimulatedWorld):
    """What every simulated runtime of the score track draws and knows: turnout, sample counts, labels, events."""

    def __init__(self, setup: ScoreSetup):
        super().__init__(setup.experiment, setup.federation, setup.calendar)
        self.public = setup.public

    def label_sets(self, client_C: Tensor, t: int) -> list[Tensor]:
        return [self.public.label_set(client, t) for client in client_C.tolist()]

    def durable(self, t: int) -> None:
        """Rows go back to files that the checkpoint names: nothing else has to be kept."""

    def close(self) -> None:
        """There is nothing to let go of."""


class InProcessScores(SimulatedScores):
    """Simulated clients in this process: `ScoreClients`, called directly."""

    def __init__(self, setup: ScoreSetup):
        super().__init__(setup)
        self.clients = ScoreClients(setup)

    @property
    def simulation(self) -> ScoreSimulation:
        return self

    def build(self, request: BuildRequest) -> BuildAnswer:
        fraction_C = self.fractions(request.client_C, request.t)
        return self.clients.build(request, fraction_C).among(request.client_C)

    def learn(self, request: LearnRequest) -> Sequence[LearnReply]:
        return self.clients.learn(request)

    def forget(self, client_I: Tensor) -> None:
        self.clients.forget(client_I)

    def measure(self, client_C: Tensor, tested_R: Tensor) -> Sequence[OwnOutput]:
        return self.clients.measure(client_C, tested_R)

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        return self.clients.save(folder, mark, files)

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        self.clients.load(folder, files)

    def describe(self) -> dict[str, Any]:
        return self.clients.describe()

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        return self.clients.memory(cohort, ever)

    # -- what only a simulation can be asked

    def own_module(self, client: int) -> nn.Module | None:
        return self.clients.own_module(client)
