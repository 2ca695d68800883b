"""What participants look at in themselves during a round, where the experiment asks: accuracy before and after local
training, the size of their gradients, their neurons before and after aggregation.

Shape letters: R participants, P parameters (all columns).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.clients.activations import distributions, own_values, shares
from turnout.clients.metrics import Models, measure_own
from turnout.engine.job import Job, Trained
from turnout.engine.train import Trainer
from turnout.settings import Evaluate
from turnout.tasks import TaskSpec
from turnout.types import Samples, Tensors

Central = tuple[Tensor, Tensors]  # one model: all columns, states


@dataclass(frozen=True)
class Watch:
    """What to look at: the settings, and the participants' own test data, in their order."""

    settings: Evaluate
    task: TaskSpec
    tests: Samples
    noisy_R: Tensor | None = None

    @property
    def magnitudes(self) -> bool:
        """Whether the size of the gradients is wanted."""
        return self.settings.gradients

    def before(self, trainer: Trainer, job: Job, seen: Tensors, central: Central | None) -> Tensors:
        """After download, before training: numbers for the report."""
        report: Tensors = {} if self.noisy_R is None else {"noisy": self.noisy_R}
        models = downloaded(job)
        if self.settings.recovery:
            measured = measure_own(trainer.workers, self.task, models, self.tests)
            report |= {f"before_{name}": value for name, value in measured.items()}
        if self.settings.activations and central is not None:
            after = distributions(trainer.workers, models, self.tests)
            averaged = own_values(trainer.network, lambda place: _alone(central), 1)
            last = {name: value.double().cpu() for name, value in seen.items()}
            report |= shares(trainer.network.module, last, after, averaged)
        return report

    def after(self, trainer: Trainer, job: Job, result: Trained) -> tuple[Tensors, Tensors]:
        """After training, before anything is sent: numbers for the report, and what to remember of the activations."""
        models = trained(job, result, trainer.network.layout.shared)
        report = {f"gradient_{name}": value for name, value in result.magnitude.items()}
        if self.settings.recovery:
            measured = measure_own(trainer.workers, self.task, models, self.tests)
            report |= {f"after_{name}": value for name, value in measured.items()}
        if not self.settings.activations:
            return report, {}
        seen = distributions(trainer.workers, models, self.tests)
        seen |= own_values(trainer.network, models, len(job.client_C))
        return report, {name: torch.nan_to_num(value) for name, value in seen.items()}


def _alone(model: Central) -> Central:
    """One model as a chunk of one."""
    return model[0][None], {name: value[None] for name, value in model[1].items()}


def downloaded(job: Job) -> Models:
    """Participants' models as they begin: what was downloaded, with what is their own."""

    def models(place_c: Tensor) -> tuple[Tensor, Tensors]:
        start = job.start_P[place_c] if job.start_P.dim() == 2 else job.start_P.expand(len(place_c), -1).contiguous()
        states = {
            name: value[place_c] if name in job.own_states else value.expand(len(place_c), *value.shape).contiguous()
            for name, value in job.states.items()
        }
        return start, states

    return models


def trained(job: Job, result: Trained, shared: int) -> Models:
    """Participants' models as they end, before anything is sent: start + update, unscaled."""

    def models(place_c: Tensor) -> tuple[Tensor, Tensors]:
        flat_cP = result.flat_CP[place_c]  # shared columns hold the scaled update
        if job.scale_C is not None:
            flat_cP[:, :shared] /= job.scale_C[place_c, None].to(flat_cP)
        flat_cP[:, :shared] += downloaded(job)(place_c)[0][:, :shared]
        return flat_cP, {name: value[place_c] for name, value in result.states.items()}

    return models
