"""What the loop of experiment.py drives: a track, with a state that goes from round to round.

`Weights` is the track that federates parameters (round.py). A track of another kind (scores) offers the same functions
and so has the same records, checkpoints, stop rules and command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.clients.state import central_model, sent_down
from turnout.data import Federation
from turnout.evaluation.hindsight import Simulated
from turnout.evaluation.metrics import Models, measure, measure_clients, measure_own, spread, summary
from turnout.exchange import Server
from turnout.experiment import Algorithm, Experiment
from turnout.parts.compression.base import Dense
from turnout.parts.membership.roster import Roster
from turnout.round import run_round
from turnout.round_log import Evaluation, RoundRecord
from turnout.runtimes.inprocess import InProcessRuntime, Model
from turnout.tracks.track import data_bytes, filled, sample_of, where
from turnout.types import State, Tensors
from turnout.world.members import Members


@dataclass(frozen=True)
class Weights:
    """Federated parameters: the round of round.py on one runtime."""

    experiment: Experiment
    federation: Federation
    template: nn.Module  # as the user wrote it, for handing trained models back
    model: Model
    runtime: InProcessRuntime
    server: Server  # before the first round
    fingerprint: str

    @property
    def algorithm(self) -> Algorithm:
        return self.runtime.algorithm

    @property
    def clients(self) -> int:
        return self.federation.clients

    @property
    def device(self) -> torch.device:
        return self.runtime.device

    def headline(self) -> str:
        return f"{self.clients:,} clients, {self.model.layout.shared:,} shared parameters"

    def begin(self) -> Server:
        return self.server

    def round(self, state: Server, t: int) -> tuple[Server, RoundRecord]:
        hindsight = Simulated(self.runtime) if self.experiment.evaluate.substitution else None
        return run_round(state, t, self.experiment.seed, self.algorithm, self.runtime, hindsight)

    def pack(self, state: Server) -> State:
        return state.to_state()

    def unpack(self, tree: State) -> Server:
        return Server.from_state(tree)

    def save_clients(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        return self.runtime.store.save(folder, mark, files)

    def load_clients(self, folder: Path, files: list[str]) -> None:
        self.runtime.store.load(folder, files)

    def evaluate(self, state: Server, t: int) -> Evaluation:
        """The global model (where the server has all of it) on the central test set, and on clients' own test data
        where asked; clients' own models where something is theirs."""
        crew, task, federation = self.runtime.trainer.crew, self.experiment.task, self.runtime.federation
        values: dict[str, float] = {}
        per_client: dict[str, tuple[Tensor, Tensor]] = {}
        model = central_model(self.model.layout, state.shared_P, state.states)
        for prefix, members in tested(state).items() if model is not None else ():
            central = federation.central_test(members)
            if model is not None and central is not None and len(central[0]):
                measured = measure(crew, task, *model, *central)
                values |= {f"{prefix}_{name}": value for name, value in measured.items()}
        if model is not None and self.experiment.evaluate.per_client:
            client_C = self.sample_of(state)
            found = measure_clients(crew, task, *model, federation.test(client_C, t))
            per_client = {f"client_{name}": (client_C, value_C) for name, value_C in found.items()}
        if self.algorithm.measures_personal(self.experiment.evaluate):
            personal, own = self.evaluate_personal(state, t)
            values, per_client = values | personal, per_client | own
        return Evaluation(t, values, per_client)

    def evaluate_personal(self, state: Server, t: int) -> tuple[dict[str, float], dict[str, tuple[Tensor, Tensor]]]:
        """Members' own models on their own test data: means, the main metric's spread, and each one's values."""
        task, noisy_N, client_C = self.experiment.task, self.runtime.federation.noisy(), self.sample_of(state)
        crew, samples = self.runtime.trainer.crew, self.runtime.federation.test(client_C, t)
        if self.algorithm.makes_own:
            found = measure_own(crew, task, self.own_models(state, client_C), samples)
        else:  # everybody's own model is the same one
            found = measure_clients(crew, task, *self.global_model(state), samples)
        values: dict[str, float] = {}
        for name, value_C in found.items():
            is_main = name == task.main
            noisy_C = noisy_N[client_C] if noisy_N is not None and is_main else None
            values |= summary(f"personal_{name}", value_C, noisy_C)
            values |= spread(f"personal_{name}", value_C, task.higher_is_better) if is_main else {}
        return values, {f"personal_{name}": (client_C, value_C) for name, value_C in found.items()}

    def own_models(self, state: Server, client_C: Tensor) -> Models:
        """These clients' models as they would begin the next round: what is shared, with what is their own."""
        layout, algorithm = self.model.layout, self.algorithm
        sent, terms = sent_down(state.states, algorithm), [term for term in algorithm.terms if term.personal]
        wanted = ("personal", "state/", *(f"mine/{term.name}/" for term in terms))

        def models(place_c: Tensor) -> tuple[Tensor, Tensors]:
            kept = self.runtime.kept(client_C[place_c], sent, lambda name: name.startswith(wanted))
            shared = {n: state.states[n].expand(len(place_c), *state.states[n].shape) for n in layout.shared_states}
            flat = kept.start(algorithm.mixing.own(state.parts["mixing"], client_C[place_c], state.shared_P))
            for term in terms:
                own_cP = term.own(flat[:, : layout.shared], kept.mine[term.name])
                flat = torch.cat([own_cP, flat[:, layout.shared :]], 1)
            return flat, shared | kept.states

        return models

    def global_model(self, state: Server) -> tuple[Tensor, Tensors]:
        """All columns and states of the model the server holds; what is personal and not sent has its first values."""
        found = central_model(self.model.layout, state.shared_P, state.states)
        if found is not None:
            return found
        layout, first = self.model.layout, self.model
        flat_P = torch.cat([state.shared_P, first.flat_P[layout.shared :].to(state.shared_P)])
        own = {name: self.runtime.placed(first.states[name]) for name in layout.personal_states}
        return flat_P, own | {name: state.states[name] for name in layout.shared_states}

    def module(self, state: Server, client: int | None) -> nn.Module:
        """The template with the server's weights in it, and one client's personal ones where asked."""
        flat_P, states = self.global_model(state)
        if client is not None:
            flat_cP, own = self.own_models(state, torch.tensor([client]))(torch.tensor([0]))
            flat_P, states = flat_cP[0], {name: value[0] for name, value in own.items()}
        return filled(self.template, self.model.layout, flat_P, states)

    def sample_of(self, state: Server) -> Tensor:
        return sample_of(state.members, self.experiment)

    def about(self) -> dict[str, Any]:
        trainer, start_1P, down = self.runtime.trainer, self.server.shared_P[None], self.server.down
        springs = all(term.spring(start_1P, down[term.name]) is not None for term in self.algorithm.terms)
        return where(self.device) | {
            "engine": trainer.title(self.algorithm.local.optimizer, springs),
            "chunk": trainer.chunk,
            "threads": trainer.threads,
        }

    def memory(self) -> dict[str, int]:
        layout, algorithm, runtime = self.model.layout, self.algorithm, self.runtime
        clients = len(algorithm.selection.choose(self.server.members, 0, self.experiment.seed))
        width = 8 if runtime.dtype == torch.float64 else 4
        matrices = 1 + len(algorithm.local.optimizer.slots) + (0 if isinstance(algorithm.compression, Dense) else 1)
        beside = sum(term.sends for term in algorithm.terms) * layout.shared
        trainer, ever = runtime.trainer, min(self.federation.clients, clients * self.experiment.rounds)
        return {
            "cohort": (int(matrices * layout.width + beside) * width + runtime.store.row_bytes) * clients,
            "training": min(trainer.chunk * trainer.threads, clients) * trainer.cost,
            "client state": runtime.store.row_bytes * ever,
            "data": data_bytes(self.federation),
            "stand-ins": algorithm.substitution.memory(ever, layout.shared),
            "models": algorithm.mixing.memory(ever, layout.shared),
        }


def tested(server: Server) -> dict[str, Members]:
    """Whose test data a model is measured on, by the name of the metric.

    global    those the objective is over
    former    those it was over before it last shifted
    members   those who are still there, where the objective is over more
    """
    found = {"global": server.objective}
    former = Roster.from_state(server.parts["membership"]).former
    if former is not None:
        found["former"] = former
    if len(server.members) < len(server.objective):
        found["members"] = server.members
    return found
