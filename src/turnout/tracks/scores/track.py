"""The score track as the loop of experiment.py drives it.

Shape letters: C members that are measured, R public samples, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.data import Federation
from turnout.engine.trainers import Place
from turnout.errors import Mistake
from turnout.evaluation.metrics import summary
from turnout.experiment import Experiment
from turnout.round_log import Evaluation, RoundRecord
from turnout.runtimes.clients import data_bytes
from turnout.tracks.scores.architectures import MODEL, STATE
from turnout.tracks.scores.round import ScoreServer, run_round
from turnout.tracks.scores.runtime import ScoreRuntime
from turnout.tracks.scores.settings import Scores
from turnout.tracks.scores.tables import Sheet, accuracy, hits
from turnout.tracks.track import filled, sample_of
from turnout.types import State


@dataclass(frozen=True, eq=False)
class ScoreTrack:
    """Federated scores: the round of scores/round.py on one runtime."""

    experiment: Experiment
    algorithm: Scores
    federation: Federation
    runtime: ScoreRuntime
    server: ScoreServer  # before the first round
    fingerprint: str

    @property
    def clients(self) -> int:
        return self.federation.clients

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.federation.names

    @property
    def device(self) -> torch.device:
        return self.sheet.x.device

    @property
    def sheet(self) -> Sheet:
        return self.runtime.sheet

    def headline(self) -> str:
        rows, labels = self.server.table.score_RL.shape
        models = len(self.runtime.zoo.models) if self.algorithm.models else 1
        kinds = f"{models} model{'s' * (models > 1)}"
        return f"{self.clients:,} clients, {kinds}, scores of {labels} labels on {rows:,} public samples"

    def begin(self) -> ScoreServer:
        return self.server

    def round(self, state: ScoreServer, t: int) -> tuple[ScoreServer, RoundRecord]:
        return run_round(state, t, self.experiment.seed, self.algorithm, self.runtime)

    def pack(self, state: ScoreServer) -> State:
        return state.to_state()

    def unpack(self, tree: State) -> ScoreServer:
        return ScoreServer.from_state(tree)

    def save_clients(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        return self.runtime.zoo.save(folder, mark, files)

    def load_clients(self, folder: Path, files: list[str]) -> None:
        self.runtime.zoo.load(folder, files)

    def evaluate(self, state: ScoreServer, t: int) -> Evaluation:
        """The global scores on the public samples held out: over all labels (Figure 3), and among each member's own
        (Global_Update); members' models where asked; in the control, how far scores follow the labels shown."""
        values: dict[str, float] = {}
        per_client: dict[str, tuple[Tensor, Tensor]] = {}
        if bool((state.table.evidence_RL > 0).any()):
            values["global_accuracy"] = self.global_accuracy(state)
        client_C = sample_of(state.members, self.experiment)
        consensus_C = self.consensus(state, client_C, t, self.sheet.true_R)
        found = {"consensus_accuracy": consensus_C}
        if self.algorithm.measures_personal(self.experiment.evaluate):
            found["personal_accuracy"] = self.runtime.own_accuracy(client_C, t)
        for name, value_C in found.items():
            values |= summary(name, value_C)
            per_client[name] = client_C, value_C
        if self.algorithm.permuted:
            values |= summary("shown_accuracy", self.consensus(state, client_C, t, self.sheet.shown_R))
        return Evaluation(t, values, per_client)

    def global_accuracy(self, state: ScoreServer) -> float:
        every_L, rows_R = torch.arange(len(self.sheet.labels)), self.sheet.tested_R
        right_R = hits(state.table.read(self.algorithm.growth), every_L, self.sheet.true_R)
        return float(right_R[rows_R].double().mean())

    def consensus(self, state: ScoreServer, client_C: Tensor, t: int, y_R: Tensor) -> Tensor:
        """The global scores of each client's labels against these labels, on the samples held out [C]."""
        found = []
        for client in client_C.tolist():
            set_l = self.runtime.label_set(client, max(t, 0))
            score_Rl = state.table.of(set_l).read(self.algorithm.growth)
            found.append(accuracy(score_Rl, set_l, y_R, self.sheet.tested_R))
        return torch.tensor(found, dtype=torch.float64)

    def module(self, state: ScoreServer, client: int | None) -> nn.Module:
        """A client's latest model; there is no other."""
        if client is None:
            raise Mistake("clients exchange scores, so there is no global model: name a client, model(client=0)")
        latest, _ = self.runtime.zoo.latest(torch.tensor([client]))
        if latest[0] is None:
            raise Mistake(f"client {client} has not trained a model yet: it has not taken part")
        rows = latest[0].store.gather(torch.tensor([client]))
        states = {name.removeprefix(STATE): value[0] for name, value in rows.items() if name.startswith(STATE)}
        return filled(latest[0].template, latest[0].layout, rows[MODEL][0], states)

    def about(self) -> dict[str, Any]:
        made = list(self.runtime.zoo.made.values())
        engines = dict.fromkeys(a.trainer.title(self.algorithm.local.optimizer) for a in made)
        return Place(self.device, self.sheet.x.dtype).describe() | {
            "engine": " and ".join(engines),
            "chunk": min(a.trainer.chunk for a in made),
            "threads": made[0].trainer.threads,
        }

    def memory(self) -> dict[str, int]:
        made = list(self.runtime.zoo.made.values())
        clients = len(self.algorithm.selection.choose(self.server.members, 0, self.experiment.seed))
        width = max(a.layout.width for a in made) * (8 if self.experiment_is_exact else 4)
        ever = min(self.clients, clients * self.experiment.rounds)
        table, step = self.server.table.score_RL.numel() * 8, max(a.trainer.cost for a in made)
        trainer = made[0].trainer
        return {
            "cohort": (3 + len(self.algorithm.local.optimizer.slots)) * clients * width,
            "training": min(trainer.chunk * trainer.threads, clients) * step,
            "scores": (4 + clients) * table,
            "client state": max(a.store.row_bytes for a in made) * ever,
            "data": data_bytes(self.federation),
        }

    @property
    def experiment_is_exact(self) -> bool:
        return getattr(self.experiment.runtime, "precision", "") == "float64"
