"""The architectures of a run. Each has one trainer, so that its clients train together, and keeps its clients' latest
models.

An architecture is a model with a number of outputs: two clients with the same model and two labels each share one, even
if the labels differ. With start = "averaged" weights are averaged too. Labels are names, so an output layer means
something only together with them: the layers whose shape depends on the number of labels (the head) are averaged among
clients with the same labels, all others (the body) among all clients with the same model.

Shape letters: C clients, c some of them, P parameters, l labels of one client.
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
from turnout.engine.backprop import cross_entropy, soft_cross_entropy
from turnout.engine.network import Network
from turnout.engine.train import Trainer
from turnout.engine.trainers import make_trainer
from turnout.layout import lay_out
from turnout.machine.profiling import stage
from turnout.parts.personal import everything
from turnout.rng import key
from turnout.running.tracks.building import build_model
from turnout.scores.exchange import Averages, ScoreSetup
from turnout.tasks import Classification, check_model
from turnout.types import Tensors

MODEL, ROUND, STATE, SLOT, COUNT = "model", "round", "state/", "slot/", "count"  # names of rows


@dataclass
class ClientModels:
    """The models of several clients of one architecture.

    flat_CP  their parameters
    states   their buffers
    slots    what their optimizers carry
    count_C  the optimizers' steps
    """

    flat_CP: Tensor
    states: Tensors
    slots: Tensors
    count_C: Tensor

    def take(self, place_c: Tensor) -> ClientModels:
        """A copy of some of them."""
        at = place_c.to(self.flat_CP.device)
        states, slots = ({n: v[at] for n, v in tensors.items()} for tensors in (self.states, self.slots))
        return ClientModels(self.flat_CP[at], states, slots, self.count_C[at])

    def put(self, place_c: Tensor, other: ClientModels) -> None:
        """Overwrite some of them."""
        at = place_c.to(self.flat_CP.device)
        self.flat_CP[at] = other.flat_CP
        self.count_C[at] = other.count_C
        for mine, theirs in ((self.states, other.states), (self.slots, other.slots)):
            for name, value in theirs.items():
                mine[name][at] = value

    def clone(self) -> ClientModels:
        return self.take(torch.arange(len(self.flat_CP)))

    def to_rows(self, t: int, moments: bool) -> Tensors:
        """What each client keeps of a round; with moments, also what its optimizer carries."""
        rows = {MODEL: self.flat_CP, ROUND: torch.full((len(self.flat_CP),), t)}
        rows |= {STATE + name: value for name, value in self.states.items()}
        if moments:
            rows |= {SLOT + name: value for name, value in self.slots.items()} | {COUNT: self.count_C}
        return rows

    def with_rows(self, rows: Tensors, carries_count: bool) -> ClientModels:
        """The models that such rows hold; the optimizer's state is as here where they hold none."""
        states = {name: rows[STATE + name] for name in self.states}
        slots = {name: rows.get(SLOT + name, value) for name, value in self.slots.items()}
        count_C = rows[COUNT] if COUNT in rows and carries_count else self.count_C
        return ClientModels(rows[MODEL], states, slots, count_C)


def states_in(rows: Tensors) -> Tensors:
    """The buffers among a client's rows."""
    return {name.removeprefix(STATE): value for name, value in rows.items() if name.startswith(STATE)}


class Architecture:
    """A model with a number of outputs: its trainer, and its clients' latest models.

    setup    what all architectures of a run have in common
    x        a batch of public samples, to try models on
    number   the model's number in the plan
    classes  outputs
    """

    def __init__(self, setup: ScoreSetup, x: Tensor, number: int, classes: int):
        self.setup, self.x, self.number, self.classes = setup, x, number, classes
        self.place, self.settings, algorithm = setup.place, setup.experiment.runtime.compute, setup.algorithm
        place, task = self.place, Classification()
        self.template = self._built(classes, setup.experiment.seed)
        highest = torch.full((len(x),), classes - 1)
        check_model(task, self.template, x.cpu().float() if x.is_floating_point() else x.cpu(), highest)
        self.layout = lay_out(self.template, everything)
        self.module = self._built(classes, setup.experiment.seed).to(place.device, place.dtype)
        self.network = Network.of(self.module, self.layout, task.loss)
        self.trainer = make_trainer(self.settings, self.network, cross_entropy, x, highest.to(place.device))
        self.batch_statistics = self.network.has_batch_statistics()
        self.key = f"{number}x{classes}"  # its name in files
        # one client's rows before its first round
        flat_P = self.layout.pack(dict(self.template.named_parameters())).to(place.dtype)
        rows = {MODEL: flat_P, ROUND: torch.tensor(-1)}
        buffers = {n: b for n, b in self.template.named_buffers() if n in self.layout.states}
        rows |= {STATE + n: b.to(place.dtype) if b.is_floating_point() else b for n, b in buffers.items()}
        if algorithm.moments == "local":
            rows |= {SLOT + name: torch.zeros_like(flat_P) for name in algorithm.local.optimizer.slots}
            rows[COUNT] = torch.tensor(0)
        self.store = ClientStore(rows)

    def _built(self, classes: int, seed: int) -> nn.Module:
        return build_model(self.setup.plan.models[self.number], tuple(self.x.shape[1:]), classes, seed)

    @cached_property
    def distiller(self) -> Trainer:
        """The trainer for targets that are probabilities."""
        network = Network.of(self.module, self.layout, against_probabilities)
        size = (len(self.x), self.classes)
        y = torch.full(size, 1 / self.classes, dtype=self.place.dtype, device=self.x.device)
        return make_trainer(self.settings, network, soft_cross_entropy, self.x, y)

    @cached_property
    def head(self) -> frozenset[str]:
        """The parameters and buffers whose shape depends on the number of labels; all, if that cannot be changed."""
        own = {name: value.shape for name, value in self.template.state_dict().items()}
        other = self._built(self.classes + 1, self.setup.experiment.seed).state_dict()
        differ = frozenset(name for name, size in own.items() if name not in other or other[name].shape != size)
        return differ or frozenset(own)

    @property
    def bytes(self) -> int:
        """Bytes of sending the model once: floats as four bytes."""
        buffers = [b.numel() for b in self.template.buffers() if b.is_floating_point()]
        return 4 * (self.layout.width + sum(buffers))

    def fresh(self, t: int, clients: int) -> ClientModels:
        """New models for a round: the same for all clients that start then with this architecture."""
        built = self._built(self.classes, key(self.setup.experiment.seed, "fresh", t))
        flat_P = self.place.put(self.layout.pack(dict(built.named_parameters())))
        buffers = dict(built.named_buffers())
        states = self.place.put_all({name: buffers[name].detach() for name in self.layout.states})
        flat_CP = flat_P.expand(clients, -1).clone()
        slots = {name: torch.zeros_like(flat_CP) for name in self.setup.algorithm.local.optimizer.slots}
        count_C = torch.zeros(clients, dtype=torch.int64, device=flat_CP.device)
        own = {name: value.expand(clients, *value.shape).clone() for name, value in states.items()}
        return ClientModels(flat_CP, own, slots, count_C)

    def kept(self, client_C: Tensor) -> Tensors:
        """These clients' rows, on the device."""
        with stage("client state"):
            return self.place.put_all(self.store.gather(client_C))

    def keep(self, client_C: Tensor, rows: Tensors) -> None:
        """Make these rows the clients' own."""
        with stage("client state"):
            self.store.scatter(client_C, rows)

    # -- weights that are averaged

    def keys(self, set_l: Tensor) -> tuple[str, str]:
        """What the body and the head of a client with these labels are averaged with."""
        return f"body {self.number}", f"head {self.number} of {' '.join(map(str, set_l.tolist()))}"

    def begin(self, averages: Averages, sets: Sequence[Tensor], models: ClientModels) -> None:
        """Write the averages into fresh models, as far as there are any."""
        named = {**self.layout.views(models.flat_CP), **models.states}
        for i, set_l in enumerate(sets):
            for where in self.keys(set_l):
                for name, value in averages.get(where, {}).items():
                    named[name][i] = value.to(named[name])

    def weights(self, sets: Sequence[Tensor], models: ClientModels) -> list[Averages]:
        """What each client sends of its model: body and head, by what they are averaged with."""
        named = {**self.layout.views(models.flat_CP), **models.states}
        found: list[Averages] = []
        for i, set_l in enumerate(sets):
            body, head = self.keys(set_l)
            found.append({})
            for name, value in named.items():
                if value.is_floating_point():
                    found[i].setdefault(head if name in self.head else body, {})[name] = value[i]
        return found


def averaged(before: Averages, sent: Sequence[tuple[float, Averages]]) -> Averages:
    """The means after a round over the weights sent, weighted by samples; other means stay as they were.

    >>> one, two = ({"body 0": {"w": torch.tensor([value])}} for value in (1.0, 4.0))
    >>> averaged({"body 1": {}}, [(1.0, one), (2.0, two)])
    {'body 1': {}, 'body 0': {'w': tensor([3.])}}
    """
    sums: dict[str, dict[str, tuple[Tensor, float]]] = {}
    for weight, parts in sent:
        for where, named in parts.items():
            for name, value in named.items():
                total, whole = sums.setdefault(where, {}).get(name, (torch.zeros_like(value), 0.0))
                sums[where][name] = (total + weight * value, whole + weight)
    return before | {where: {n: total / whole for n, (total, whole) in found.items()} for where, found in sums.items()}


def against_probabilities(output: Tensor, target: Tensor) -> Tensor:
    """-Σ p log q per sample, p with the sum 1."""
    return -(target * log_softmax(output, -1)).sum(-1)


class Architectures:
    """All architectures of a run, made when first needed."""

    def __init__(self, setup: ScoreSetup, x: Tensor):
        self.setup, self.x = setup, x
        self.made: dict[tuple[int, int], Architecture] = {}

    def of(self, client: int, t: int, labels: int) -> Architecture:
        """A client's architecture in a round, for its number of labels."""
        return self.make(self.setup.plan.number(client, t), labels)

    def make(self, number: int, labels: int) -> Architecture:
        if (number, labels) not in self.made:
            self.made[number, labels] = Architecture(self.setup, self.x, number, labels)
        return self.made[number, labels]

    def latest(self, client_C: Tensor) -> tuple[list[Architecture | None], Tensor]:
        """The architecture of each client's latest model (None: it has none yet), and the round it is from."""
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
        """Write the clients' rows, a list of files per architecture."""
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
