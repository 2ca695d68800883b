"""What participants look at in themselves during a round, where the experiment asks: accuracy before and after local
training, the size of their gradients, their neurons before and after aggregation.

Shape letters: R participants, P parameters (all columns).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from turnout.clients.activations import distributions, own_values, shares
from turnout.clients.metrics import Models, measure_own
from turnout.engine.job import Job, Trained
from turnout.engine.train import Trainer
from turnout.settings import Evaluate
from turnout.tasks import TaskSpec
from turnout.types import Samples, Tensors
from turnout.world.attacks import Attackers

Central = tuple[Tensor, Tensors]  # one model: all columns, states


@dataclass(frozen=True)
class WorkHooks:
    """What a simulated world does around training: participants are measured, and hostile ones replace what they send.

    settings   what to measure
    task       its metrics
    tests      gives the participants' own test data, in their order
    noisy_R    whose training data was spoilt, where that is known and something is measured
    central    the downloaded model, where the server has all of it
    attackers  hostile clients; None: there are none
    """

    settings: Evaluate
    task: TaskSpec
    tests: Callable[[], Samples]
    noisy_R: Tensor | None
    central: Central | None
    attackers: Attackers | None

    def before(self, trainer: Trainer, job: Job, seen: Tensors) -> Tensors:
        """After download, before training: numbers for the report."""
        report: Tensors = {} if self.noisy_R is None else {"noisy": self.noisy_R}
        models, central = downloaded(job), self.central
        if self.settings.recovery:
            measured = measure_own(trainer.workers, self.task, models, self.tests())
            report |= {f"before_{name}": value for name, value in measured.items()}
        if self.settings.activations and central is not None:
            after = distributions(trainer.workers, models, self.tests())
            alone = central[0][None], {name: value[None] for name, value in central[1].items()}
            averaged = own_values(trainer.network, lambda place: alone, 1)
            last = {name: value.double().cpu() for name, value in seen.items()}
            report |= shares(trainer.network.module, last, after, averaged)
        return report

    def after(self, trainer: Trainer, job: Job, result: Trained) -> tuple[Tensor, Tensors, Tensors]:
        """After training: the updates to send, numbers for the report, and what to remember of the activations."""
        shared, seen = trainer.network.layout.shared, Tensors()
        models = trained(job, result, shared)
        report = {f"gradient_{name}": value for name, value in result.magnitude.items()}
        if self.settings.recovery:
            measured = measure_own(trainer.workers, self.task, models, self.tests())
            report |= {f"after_{name}": value for name, value in measured.items()}
        if self.settings.activations:
            seen = distributions(trainer.workers, models, self.tests())
            seen |= own_values(trainer.network, models, len(job.client_C))
        update_RP = result.flat_CP[:, :shared]
        if self.attackers is not None:
            update_RP = self.attackers.sent(update_RP, job.client_C, job.t)
            result.finite_C &= torch.isfinite(update_RP.sum(1))
            result.squared_C = result.squared_C[:0]  # another update's
        return update_RP, report, {name: torch.nan_to_num(value) for name, value in seen.items()}

    def beside(
        self, client_R: Tensor, states: Tensors, uploads: dict[str, Tensors]
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """States and uploads of the terms as they are sent."""
        if self.attackers is None:
            return states, uploads
        sent = partial(self.attackers.sent_beside, client_R=client_R)
        return sent(states), {term: sent(tensors) for term, tensors in uploads.items()}


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
