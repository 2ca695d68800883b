"""Which client uses which architecture when. Each architecture has one trainer, so that its clients train together, and
keeps the latest models of its clients.

An architecture is a model with a number of outputs: two clients with the same model and two labels each share one, even
where the labels differ.

Shape letters: C clients, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from turnout.clients.store import ClientStore
from turnout.engine.losses import cross_entropy, soft_cross_entropy
from turnout.engine.network import Network
from turnout.engine.train import Trainer
from turnout.engine.trainers import make_trainer
from turnout.errors import Mistake, nearest
from turnout.layout import lay_out
from turnout.models import Model
from turnout.parts.personal import everything
from turnout.rng import key
from turnout.runtimes.settings import InProcess
from turnout.task import Classification, check_model
from turnout.tracks.building import build_model
from turnout.tracks.scores.settings import Scores, Uses
from turnout.types import Tensors

MODEL, ROUND, STATE, SLOT, COUNT = "model", "round", "state/", "slot/", "count"  # rows of a client


@dataclass(frozen=True, eq=False)
class Shop:
    """What is needed to make an architecture ready: where it runs, and samples like those it will see."""

    settings: InProcess
    algorithm: Scores
    x: Tensor  # a batch of public samples, on the device and in the precision of the run
    seed: int


class Architecture:
    """A model with a number of outputs: its trainer, and its clients' latest models."""

    def __init__(self, model: Model, spec: int, classes: int, shop: Shop):
        self.model, self.spec, self.classes, self.shop = model, spec, classes, shop
        x = shop.x
        self.template = build_model(model, tuple(x.shape[1:]), classes, shop.seed)
        highest = torch.full((len(x),), classes - 1)
        tried = x.cpu().float() if x.is_floating_point() else x.cpu()
        check_model(Classification(), self.template, tried, highest)
        self.layout = lay_out(self.template, everything)
        self.module = build_model(model, tuple(x.shape[1:]), classes, shop.seed).to(x.device, self._dtype)
        self.network = Network.of(self.module, self.layout, Classification().loss)
        self.trainer = make_trainer(shop.settings, self.network, cross_entropy, x, highest.to(x.device))
        self.store = ClientStore(self._rows())

    @property
    def key(self) -> str:
        return f"{self.spec}x{self.classes}"

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.shop.settings.precision == "float64" else torch.float32

    @cached_property
    def digester(self) -> Trainer:
        """The trainer for soft targets."""
        x = self.shop.x
        network = Network.of(self.module, self.layout, against_probabilities)
        y = torch.full((len(x), self.classes), 1 / self.classes, dtype=self._dtype, device=x.device)
        return make_trainer(self.shop.settings, network, soft_cross_entropy, x, y)

    @property
    def bytes(self) -> int:
        """What sending the model once would take: floats as four bytes."""
        buffers = [b.numel() for b in self.template.buffers() if b.is_floating_point()]
        return 4 * (self.layout.width + sum(buffers))

    def fresh(self, t: int) -> tuple[Tensor, Tensors]:
        """New weights and buffers for a round: the same for everybody who starts then with this architecture."""
        built = build_model(self.model, tuple(self.shop.x.shape[1:]), self.classes, key(self.shop.seed, "fresh", t))
        flat_P = self.layout.pack(dict(built.named_parameters()))
        states = {name: value.detach().clone() for name, value in built.named_buffers()}
        return self.placed(flat_P), {name: self.placed(value) for name, value in states.items()}

    def placed(self, value: Tensor) -> Tensor:
        device = self.shop.x.device
        return value.to(device, self._dtype) if value.is_floating_point() else value.to(device)

    def _rows(self) -> Tensors:
        """One client's rows before its first round."""
        flat_P = self.layout.pack(dict(self.template.named_parameters())).to(self._dtype)
        rows = {MODEL: flat_P, ROUND: torch.tensor(-1)}
        rows |= {STATE + n: b.to(self._dtype) if b.is_floating_point() else b for n, b in self.template.named_buffers()}
        if self.shop.algorithm.moments == "local":
            rows |= {SLOT + name: torch.zeros_like(flat_P) for name in self.shop.algorithm.local.optimizer.slots}
            rows[COUNT] = torch.tensor(0)
        return rows

    def kept(self, client_C: Tensor) -> Tensors:
        """What these clients have of their own here, on the device."""
        return {name: self.placed(value) for name, value in self.store.gather(client_C).items()}


def against_probabilities(output: Tensor, target: Tensor) -> Tensor:
    """-Σ p log q per sample, p with the sum 1."""
    return -(target * log_softmax(output, -1)).sum(-1)


class Zoo:
    """All architectures of a run, made when first needed."""

    def __init__(self, default: Model, uses: Sequence[Uses], names: tuple[str, ...] | None, clients: int, shop: Shop):
        self.shop, self.models = shop, [default]
        self.plan: dict[int, list[tuple[int, int]]] = {}
        for entry in uses:
            client = _number(entry.client, names, clients)
            self.plan.setdefault(client, []).append((entry.since, self._spec(entry.model)))
        for client, changes in self.plan.items():
            changes.sort(key=lambda change: change[0])
            if len({since for since, _ in changes}) < len(changes):
                raise Mistake(f"algorithm.models: client {client} has two models from the same round on: keep one")
        self.made: dict[tuple[int, int], Architecture] = {}

    def _spec(self, model: Model) -> int:
        for number, known in enumerate(self.models):
            if known is model or (type(known) is type(model) and not isinstance(model, nn.Module) and known == model):
                return number
        self.models.append(model)
        return len(self.models) - 1

    def of(self, client: int, t: int, labels: int) -> Architecture:
        """A client's architecture in a round, for its number of labels."""
        spec = 0
        for since, later in self.plan.get(client, ()):
            spec = later if since <= t else spec
        return self.make(spec, labels)

    def make(self, spec: int, labels: int) -> Architecture:
        if (spec, labels) not in self.made:
            self.made[spec, labels] = Architecture(self.models[spec], spec, labels, self.shop)
        return self.made[spec, labels]

    def latest(self, client_C: Tensor) -> tuple[list[Architecture | None], Tensor]:
        """Whose architecture each client's latest model is of (None: it has none yet), and the round it is from."""
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
            spec, labels = (int(part) for part in own.split("x"))
            self.make(spec, labels).store.load(folder, [name for name in files if _key_of(name) == own])


def _key_of(file: str) -> str:
    """
    >>> _key_of("clients-0000004-1x2.safetensors")
    '1x2'
    """
    return file.removesuffix(".safetensors").rpartition("-")[2]


def _number(client: int | str, names: tuple[str, ...] | None, clients: int) -> int:
    if isinstance(client, str) and names is not None and client in names:
        return names.index(client)
    if isinstance(client, str) and not client.isdecimal():
        raise Mistake(f"algorithm.models speaks of client {client!r}: {nearest(client, names or ())}")
    if not 0 <= int(client) < clients:
        raise Mistake(f"algorithm.models speaks of client {client}, and there is none: they are 0 to {clients - 1}")
    return int(client)
