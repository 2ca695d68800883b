"""The score track as the loop of running/loop.py drives it.

Shape letters: C members that are measured, R public samples, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from turnout.clients.metrics import summary
from turnout.data.description import Description
from turnout.data.enrolling import described
from turnout.errors import UserError
from turnout.exchange import Enrolment
from turnout.experiment import Experiment
from turnout.round_log import Evaluation, RoundRecord
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.track import ON_ITS_DEVICE, OnRuntime, record_bytes, sample_of
from turnout.scores.exchange import ScoreRuntime
from turnout.scores.public_labels import PublicLabels, accuracy, hits
from turnout.scores.round import run_round
from turnout.scores.settings import Scores
from turnout.scores.state import ScoreServer
from turnout.types import State


@dataclass(frozen=True, eq=False)
class ScoreTrack(OnRuntime):
    """Federated scores, prepared for one experiment."""

    experiment: Experiment
    algorithm: Scores
    enrolment: Enrolment
    models: int  # different ones
    public: PublicLabels
    runtime: ScoreRuntime
    server: ScoreServer  # before the first round
    device: torch.device
    fingerprint: str
    first: FirstValues
    warnings: tuple[str, ...] = ()

    def headline(self) -> str:
        rows, labels = self.server.table.score_RL.shape
        kinds = f"{self.models} model{'s' * (self.models > 1)}"
        return f"{self.clients:,} clients, {kinds}, scores of {labels} labels on {rows:,} public samples"

    def begin(self) -> ScoreServer:
        return self.server

    def round(self, state: ScoreServer, t: int) -> tuple[ScoreServer, RoundRecord]:
        after, record = run_round(state, t, self.experiment.seed, self.algorithm, self.public, self.runtime)
        return after, replace(record, extra={**record.extra, **self.runtime.noted()})

    def pack(self, state: ScoreServer) -> State:
        return state.to_state()

    def unpack(self, tree: State) -> ScoreServer:
        return ScoreServer.from_state(tree)

    # -- evaluation

    def evaluate(self, state: ScoreServer, t: int) -> Evaluation:
        """The global scores on the public samples held out: over all labels (Figure 3), and among each member's own
        (Global_Update); members' models where asked; in the control, how far scores follow the labels shown."""
        values: dict[str, float] = {}
        if bool((state.table.evidence_RL > 0).any()):
            values["global_accuracy"] = self.global_accuracy(state)
        client_C = sample_of(state.members, self.experiment)
        found = {"consensus_accuracy": self.consensus(state, client_C, t, self.public.true_R)}
        if self.algorithm.measures_personal(self.experiment.evaluate):
            found["personal_accuracy"] = self.own_accuracy(client_C)
        for name, value_C in found.items():
            values |= summary(name, value_C)
        if self.algorithm.permuted:
            values |= summary("shown_accuracy", self.consensus(state, client_C, t, self.public.shown_R))
        return Evaluation(t, values, {name: (client_C, value_C) for name, value_C in found.items()})

    def global_accuracy(self, state: ScoreServer) -> float:
        every_L = torch.arange(len(self.public.names))
        right_R = hits(state.table.read(self.algorithm.growth), every_L, self.public.true_R)
        return float(right_R[self.public.tested_R].double().mean())

    def consensus(self, state: ScoreServer, client_C: Tensor, t: int, y_R: Tensor) -> Tensor:
        """The global scores of each client's labels against these labels, on the samples held out [C]."""
        found = []
        for set_l in self.runtime.label_sets(client_C, max(t, 0)):
            score_Rl = state.table.of(set_l).read(self.algorithm.growth)
            found.append(accuracy(score_Rl, set_l, y_R, self.public.tested_R))
        return torch.tensor(found, dtype=torch.float64)

    def own_accuracy(self, client_C: Tensor) -> Tensor:
        """Each client's latest model on the samples held out, among its labels [C]; NaN for one without a model."""
        said = {own.client: own for own in self.runtime.measure(client_C, self.public.tested_R)}
        found = [
            self.public.accuracy_of(said[client].output_Tl, said[client].set_l) if client in said else float("nan")
            for client in client_C.tolist()
        ]
        return torch.tensor(found, dtype=torch.float64)

    def module(self, state: ScoreServer, client: int | None) -> nn.Module:
        """A client's latest model; there is no other."""
        if client is None:
            raise UserError("clients exchange scores, so there is no global model: name a client, model(client=0)")
        if self.runtime.simulation is None:
            raise UserError(ON_ITS_DEVICE)
        module = self.runtime.simulation.own_module(client)
        if module is None:
            raise UserError(f"client {client} has not trained a model yet: it has not taken part")
        return module

    # -- what it takes

    def data(self) -> Description:
        return described(replace(self.enrolment, clients=self.clients, names=self.names), self.fingerprint)

    def memory(self) -> dict[str, int]:
        selection = self.algorithm.selection
        cohort = len(selection.choose(self.server.members, 0, self.experiment.seed, selection.begin()))
        ever = min(self.clients, cohort * self.experiment.rounds)
        table = self.server.table.score_RL.numel() * 8
        needed = self.runtime.memory(cohort, ever) | {"records": record_bytes(cohort)}
        return needed | {"scores": (4 + cohort) * table}
