"""What clients of one architecture do with their samples: train a model each, all at once on the engine's trainer, and
score the public samples with it.

Shape letters: C clients, P parameters, R public samples, l labels of a client.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.engine.gradients import Gradients
from turnout.engine.job import Job, Trained
from turnout.engine.train import Trainer
from turnout.parts.local import Local, steps_per_epoch
from turnout.scores.architectures import Architecture
from turnout.scores.client_models import ClientModels
from turnout.types import Samples

ROWS = 256  # public samples scored together


@dataclass(frozen=True)
class Work:
    """Private work of clients of one architecture; `check`: what early stopping looks at (a client may have none)."""

    client_C: Tensor
    steps_C: Tensor
    samples: Samples
    check: Samples | None
    lr: float
    t: int
    seed: int

    def take(self, place_c: Tensor) -> Work:
        """The work of some of them."""
        check = None if self.check is None else self.check.take(place_c)
        own = replace(self, client_C=self.client_C[place_c], steps_C=self.steps_C[place_c], check=check)
        return replace(own, samples=self.samples.take(place_c))


@dataclass(frozen=True)
class Built:
    """The outcome: models, mean training loss, epochs made, and whether all losses were numbers."""

    models: ClientModels
    loss_C: Tensor
    epochs_C: Tensor
    finite_C: Tensor

    def take(self, place_c: Tensor) -> Built:
        """The outcome for some of them."""
        return Built(self.models.take(place_c), self.loss_C[place_c], self.epochs_C[place_c], self.finite_C[place_c])


def build(architecture: Architecture, local: Local, work: Work, start: ClientModels) -> Built:
    """Train every client's model on its own samples, all epochs in one go."""
    order = most_first(work.steps_C)
    trained = train(architecture.trainer, local, work, start, order, work.steps_C, work.seed)
    back = torch.argsort(order)
    loss_C = trained.loss_C[back].double().cpu()
    epochs_C = work.steps_C / steps_an_epoch(architecture, local, work)
    return Built(models_of(trained).take(back), loss_C, epochs_C, torch.isfinite(loss_C))


def most_first(steps_C: Tensor) -> Tensor:
    """The order in which the trainer takes clients: most steps first."""
    return torch.sort(steps_C, descending=True, stable=True).indices


def steps_an_epoch(architecture: Architecture, local: Local, work: Work) -> Tensor:
    size = local.batch_of(work.samples.count_C, work.t)
    return steps_per_epoch(work.samples.count_C, size, architecture.batch_statistics).clamp(min=1)


def train(
    trainer: Trainer, local: Local, work: Work, start: ClientModels, order: Tensor, steps_C: Tensor, seed: int
) -> Trained:
    """Train some of the clients, in this order (most steps first)."""
    own, samples = start.take(order), work.samples.take(order)
    job = Job(
        client_C=work.client_C[order],
        steps_C=steps_C[order],
        samples=samples,
        start_P=own.flat_CP,
        states=own.states,
        own_states=frozenset(own.states),
        lr=work.lr,
        batch_size=local.batch_of(work.samples.count_C, work.t),
        drop_single=trainer.network.has_batch_statistics(),
        seed=seed,
        t=work.t,
        optimizer=local.optimizer,
        slots=own.slots,
        count_C=own.count_C.cpu(),
    )
    return trainer.train(job)


def models_of(trained: Trained) -> ClientModels:
    """The trained weights: all columns are personal, so they are what training left, not updates."""
    return ClientModels(trained.flat_CP, trained.states, trained.slots, trained.count_C)


@torch.no_grad()
def predict(architecture: Architecture, models: ClientModels, x: Tensor) -> Tensor:
    """Outputs of every client's model on the same samples [C, R, l], in double precision on the CPU."""
    clients, rows = len(models.flat_CP), len(x)
    found = torch.empty(clients, rows, architecture.classes, dtype=torch.float64)
    like = max(1, len(architecture.conditions.x))  # the chunk was measured on batches of this many samples
    chunk = max(1, architecture.trainer.chunk * like // ROWS)

    @torch.no_grad()
    def part(gradients: Gradients, piece: tuple[int, int]) -> None:
        own, some = slice(piece[0], piece[0] + chunk), slice(piece[1], piece[1] + ROWS)
        flat_cP = models.flat_CP[own]
        features = x[some].to(flat_cP.dtype) if x.is_floating_point() else x[some]
        states = {name: value[own] for name, value in models.states.items()}
        together = features.expand(len(flat_cP), *features.shape)
        found[own, some] = gradients.outputs(flat_cP, states, together).double().cpu()

    pieces = itertools.product(range(0, clients, chunk), range(0, rows, ROWS))
    architecture.trainer.workers.map(part, list(pieces))
    return found
