"""The architectures of a run. Each has one trainer, so that its clients train together, and keeps the latest models of
its clients.

An architecture is a model with a number of outputs: two clients with the same model and two labels each share one, even
where the labels differ.

Shape letters: C clients, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from turnout.clients.store import ClientStore
from turnout.engine.losses import cross_entropy, soft_cross_entropy
from turnout.engine.network import Network
from turnout.engine.train import Trainer
from turnout.engine.trainers import Place, make_trainer
from turnout.layout import lay_out
from turnout.machine.profiling import stage
from turnout.models import Model
from turnout.parts.personal import everything
from turnout.rng import key
from turnout.running.tracks.building import build_model
from turnout.scores.client_models import COUNT, MODEL, ROUND, SLOT, STATE, ClientModels
from turnout.scores.model_plan import ModelPlan
from turnout.scores.settings import Scores
from turnout.settings import InProcess
from turnout.tasks import Classification, check_model
from turnout.types import Tensors


@dataclass(frozen=True, eq=False)
class Conditions:
    """What all architectures of a run have in common: how and where they are trained, and samples they are tried on."""

    settings: InProcess
    algorithm: Scores
    place: Place
    x: Tensor  # a batch of public samples, at this place
    seed: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])


class Architecture:
    """A model with a number of outputs: its trainer, and its clients' latest models."""

    def __init__(self, model: Model, number: int, classes: int, conditions: Conditions):
        self.model, self.number, self.classes, self.conditions = model, number, classes, conditions
        x, place = conditions.x, conditions.place
        self.template = build_model(model, conditions.shape, classes, conditions.seed)
        highest = torch.full((len(x),), classes - 1)
        tried = x.cpu().float() if x.is_floating_point() else x.cpu()
        check_model(Classification(), self.template, tried, highest)
        self.layout = lay_out(self.template, everything)
        self.module = build_model(model, conditions.shape, classes, conditions.seed).to(place.device, place.dtype)
        self.network = Network.of(self.module, self.layout, Classification().loss)
        self.trainer = make_trainer(conditions.settings, self.network, cross_entropy, x, highest.to(place.device))
        self.store = ClientStore(self._first_rows())

    @property
    def key(self) -> str:
        """Its name in files."""
        return f"{self.number}x{self.classes}"

    @cached_property
    def distiller(self) -> Trainer:
        """The trainer for targets that are probabilities."""
        x, settings = self.conditions.x, self.conditions.settings
        network = Network.of(self.module, self.layout, against_probabilities)
        y = torch.full((len(x), self.classes), 1 / self.classes, dtype=self.conditions.place.dtype, device=x.device)
        return make_trainer(settings, network, soft_cross_entropy, x, y)

    @cached_property
    def head(self) -> frozenset[str]:
        """The parameters and buffers whose shape depends on the number of labels; all, where that cannot be changed."""
        own = {name: value.shape for name, value in self.template.state_dict().items()}
        conditions, more = self.conditions, self.classes + 1
        other = build_model(self.model, conditions.shape, more, conditions.seed).state_dict()
        differ = frozenset(name for name, size in own.items() if name not in other or other[name].shape != size)
        return differ or frozenset(own)

    @property
    def bytes(self) -> int:
        """What sending the model once would take: floats as four bytes."""
        buffers = [b.numel() for b in self.template.buffers() if b.is_floating_point()]
        return 4 * (self.layout.width + sum(buffers))

    @property
    def batch_statistics(self) -> bool:
        return self.network.has_batch_statistics()

    def fresh(self, t: int, clients: int) -> ClientModels:
        """New models for a round: the same for everybody who starts then with this architecture."""
        conditions = self.conditions
        built = build_model(self.model, conditions.shape, self.classes, key(conditions.seed, "fresh", t))
        flat_P = conditions.place.put(self.layout.pack(dict(built.named_parameters())))
        buffers = dict(built.named_buffers())
        states = conditions.place.put_all({name: buffers[name].detach() for name in self.layout.states})
        flat_CP = flat_P.expand(clients, -1).clone()
        slots = {name: torch.zeros_like(flat_CP) for name in conditions.algorithm.local.optimizer.slots}
        count_C = torch.zeros(clients, dtype=torch.int64, device=flat_CP.device)
        own = {name: value.expand(clients, *value.shape).clone() for name, value in states.items()}
        return ClientModels(flat_CP, own, slots, count_C)

    def _first_rows(self) -> Tensors:
        """One client's rows before its first round."""
        algorithm, dtype = self.conditions.algorithm, self.conditions.place.dtype
        flat_P = self.layout.pack(dict(self.template.named_parameters())).to(dtype)
        rows = {MODEL: flat_P, ROUND: torch.tensor(-1)}
        buffers = {n: b for n, b in self.template.named_buffers() if n in self.layout.states}
        rows |= {STATE + n: b.to(dtype) if b.is_floating_point() else b for n, b in buffers.items()}
        if algorithm.moments == "local":
            rows |= {SLOT + name: torch.zeros_like(flat_P) for name in algorithm.local.optimizer.slots}
            rows[COUNT] = torch.tensor(0)
        return rows

    def kept(self, client_C: Tensor) -> Tensors:
        """What these clients have of their own here, on the device."""
        with stage("client state"):
            return self.conditions.place.put_all(self.store.gather(client_C))

    def keep(self, client_C: Tensor, rows: Tensors) -> None:
        """These rows are theirs from now on."""
        with stage("client state"):
            self.store.scatter(client_C, rows)


def against_probabilities(output: Tensor, target: Tensor) -> Tensor:
    """-Σ p log q per sample, p with the sum 1."""
    return -(target * log_softmax(output, -1)).sum(-1)


class Architectures:
    """All architectures of a run, made when first needed."""

    def __init__(self, plan: ModelPlan, conditions: Conditions):
        self.plan, self.conditions = plan, conditions
        self.made: dict[tuple[int, int], Architecture] = {}

    def of(self, client: int, t: int, labels: int) -> Architecture:
        """A client's architecture in a round, for its number of labels."""
        return self.make(self.plan.number(client, t), labels)

    def make(self, number: int, labels: int) -> Architecture:
        if (number, labels) not in self.made:
            self.made[number, labels] = Architecture(self.plan.models[number], number, labels, self.conditions)
        return self.made[number, labels]

    def latest(self, client_C: Tensor) -> tuple[list[Architecture | None], Tensor]:
        """Of which architecture each client's latest model is (None: it has none yet), and the round it is from."""
        best_C = torch.full((len(client_C),), -1)
        found: list[Architecture | None] = [None] * len(client_C)
        for architecture in self.made.values():
            round_C = architecture.store.gather(client_C, lambda name: name == ROUND)[ROUND]
            for i in (round_C > best_C).nonzero().squeeze(1).tolist():
                found[i] = architecture
            best_C = torch.maximum(best_C, round_C)
        return found, best_C

    def forget(self, client: int) -> None:
        for architecture in self.made.values():
            architecture.store.forget(client)

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        """Write what clients keep, a list of files per architecture."""
        found = []
        for architecture in self.made.values():
            own = [name for name in files if _key_of(name) == architecture.key]
            found += architecture.store.save(folder, f"{mark}-{architecture.key}", own)
        return found

    def load(self, folder: Path, files: list[str]) -> None:
        for architecture in self.made.values():
            architecture.store.clear()
        for own in dict.fromkeys(map(_key_of, files)):
            number, labels = (int(part) for part in own.split("x"))
            self.make(number, labels).store.load(folder, [name for name in files if _key_of(name) == own])


def _key_of(file: str) -> str:
    """
    >>> _key_of("clients-0000004-1x2.safetensors")
    '1x2'
    """
    return file.removesuffix(".safetensors").rpartition("-")[2]
