"""Early stopping: clients train epoch by epoch, until their loss has not fallen for some epochs.

Shape letters: C clients, c those who still train, B samples of a client.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.clients.metrics import measure_own
from turnout.parts.local import Local
from turnout.rng import key, rng
from turnout.scores.architectures import Architecture
from turnout.scores.client_models import ClientModels
from turnout.scores.settings import EarlyStopping
from turnout.scores.training import Built, Work, models_of, most_first, steps_an_epoch, train
from turnout.tasks import Classification
from turnout.types import Samples, Tensors


def split_off(samples: Samples, client_C: Tensor, share: float, seed: int, t: int) -> tuple[Samples, Samples]:
    """A random share of each client's samples, rounded down, taken out for early stopping: (the rest, those)."""
    rest, taken = [], []
    for client, row_B in zip(client_C.tolist(), samples.row_R.split(samples.count_C.tolist()), strict=True):
        order = torch.randperm(len(row_B), generator=rng(seed, "early stopping", t, client)).to(row_B.device)
        count = int(share * len(row_B))
        rest.append(row_B[order[count:].sort().values])
        taken.append(row_B[order[:count]])
    return _with_rows(samples, rest), _with_rows(samples, taken)


def _with_rows(samples: Samples, rows: list[Tensor]) -> Samples:
    return Samples(samples.x, samples.y, torch.cat(rows), torch.tensor([len(own) for own in rows]))


@dataclass
class _Progress:
    """How far each client is: its model now, the best so far, and how long it has waited for a better one."""

    now: ClientModels
    best: ClientModels
    lowest_C: Tensor
    waited_C: Tensor
    epochs_C: Tensor
    loss_C: Tensor  # summed over steps
    finite_C: Tensor

    @staticmethod
    def of(start: ClientModels) -> _Progress:
        zero_C = torch.zeros(len(start.flat_CP))
        return _Progress(
            now=start.clone(),
            best=start.clone(),
            lowest_C=torch.full_like(zero_C, torch.inf, dtype=torch.float64),
            waited_C=zero_C.long(),
            epochs_C=zero_C.clone(),
            loss_C=zero_C.clone(),
            finite_C=torch.ones_like(zero_C, dtype=torch.bool),
        )

    def trained(self, place_c: Tensor, models: ClientModels, loss_c: Tensor, steps_c: Tensor, epochs_c: Tensor) -> None:
        """After some clients have trained an epoch, or what was left of one."""
        self.now.put(place_c, models)
        self.epochs_C[place_c] += epochs_c
        self.loss_C[place_c] += loss_c.float() * steps_c
        self.finite_C[place_c] &= torch.isfinite(loss_c)

    def judged(self, place_c: Tensor, loss_c: Tensor) -> None:
        """A model with a lower loss than ever is the best; who has none waits one epoch more."""
        better_c = loss_c < self.lowest_C[place_c]
        self.best.put(place_c[better_c], self.now.take(place_c[better_c]))
        self.lowest_C[place_c] = torch.minimum(self.lowest_C[place_c], loss_c)
        self.waited_C[place_c] = torch.where(better_c, 0, self.waited_C[place_c] + 1)


def build_until(
    architecture: Architecture, local: Local, work: Work, start: ClientModels, early: EarlyStopping
) -> Built:
    """Train epoch by epoch, until a client's loss has not fallen for `patience` epochs; its best weights are kept."""
    per_epoch_C, progress = steps_an_epoch(architecture, local, work), _Progress.of(start)
    for epoch in itertools.count():
        left_C = (work.steps_C - epoch * per_epoch_C).clamp(min=0).minimum(per_epoch_C)
        here = ((left_C > 0) & (progress.waited_C < early.patience)).nonzero().squeeze(1)
        if not len(here):
            break
        place_c = here[most_first(left_C[here])]
        seed = work.seed if epoch == 0 else key(work.seed, "epoch", epoch)
        trained = train(architecture.trainer, local, work, progress.now, place_c, left_C, seed)
        loss_c, steps_c = trained.loss_C.double().cpu(), left_C[place_c]
        progress.trained(place_c, models_of(trained), loss_c, steps_c, steps_c / per_epoch_C[place_c])
        progress.judged(place_c, _deciding_loss(architecture, work, progress.now, place_c, loss_c))
    made_C = (progress.epochs_C * per_epoch_C).clamp(min=1)
    return Built(progress.best, (progress.loss_C / made_C).double(), progress.epochs_C.double(), progress.finite_C)


def _deciding_loss(
    architecture: Architecture, work: Work, now: ClientModels, place_c: Tensor, training_c: Tensor
) -> Tensor:
    """The loss on the samples set aside, or in training for clients without any."""
    if work.check is None or not len(work.check.row_R):
        return training_c
    own = now.take(place_c)

    def models(at: Tensor) -> tuple[Tensor, Tensors]:
        at = at.to(own.flat_CP.device)
        return own.flat_CP[at], {name: value[at] for name, value in own.states.items()}

    found = measure_own(architecture.trainer.workers, Classification(), models, work.check.take(place_c))["loss"]
    return torch.where(found.isnan(), training_c, found)
