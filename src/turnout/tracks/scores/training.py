"""What clients of one architecture do with their data: build a model, stop early, score the public samples, learn from
the global scores. All of them at once, on the engine's trainer.

Shape letters: C clients, c some of them, P parameters, R public samples, B samples, l labels of a client.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.engine.gradients import Gradients
from turnout.engine.job import Job, Trained
from turnout.engine.train import Trainer
from turnout.evaluation.metrics import measure_own
from turnout.parts.local import Local, steps_per_epoch
from turnout.rng import key, rng
from turnout.task import Classification
from turnout.tracks.scores.architectures import Architecture
from turnout.tracks.scores.settings import Distil, EarlyStopping
from turnout.types import Samples, Tensors

ROWS = 256  # public samples scored together
COPIES = 256 << 20  # bytes of public samples copied at once for distillation


@dataclass
class Models:
    """The models of some clients, with what their optimizer carries."""

    flat_CP: Tensor
    states: Tensors
    slots: Tensors
    count_C: Tensor

    def take(self, place_c: Tensor) -> Models:
        def rows(tensors: Tensors) -> Tensors:
            return {name: value[place_c] for name, value in tensors.items()}

        return Models(self.flat_CP[place_c], rows(self.states), rows(self.slots), self.count_C[place_c])

    def put(self, place_c: Tensor, other: Models) -> None:
        self.flat_CP[place_c] = other.flat_CP
        self.count_C[place_c] = other.count_C
        for name, value in other.states.items():
            self.states[name][place_c] = value
        for name, value in other.slots.items():
            self.slots[name][place_c] = value

    def clone(self) -> Models:
        return self.take(torch.arange(len(self.flat_CP), device=self.flat_CP.device))


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


@dataclass(frozen=True)
class Built:
    """The outcome: models, mean training loss, epochs made, and whether all losses were numbers."""

    models: Models
    loss_C: Tensor
    epochs_C: Tensor
    finite_C: Tensor


def split_off(samples: Samples, client_C: Tensor, share: float, seed: int, t: int) -> tuple[Samples, Samples]:
    """A random share of each client's samples, rounded down, taken out for early stopping: (the rest, those)."""
    rest, taken = [], []
    for client, row_B in zip(client_C.tolist(), samples.row_R.split(samples.count_C.tolist()), strict=True):
        order = torch.randperm(len(row_B), generator=rng(seed, "early stopping", t, client)).to(row_B.device)
        count = int(share * len(row_B))
        rest.append(row_B[order[count:].sort().values])
        taken.append(row_B[order[:count]])
    return tuple(  # type: ignore[return-value]
        Samples(samples.x, samples.y, torch.cat(rows), torch.tensor([len(own) for own in rows]))
        for rows in (rest, taken)
    )


def build(architecture: Architecture, local: Local, work: Work, start: Models, early: EarlyStopping | None) -> Built:
    """Train every client's model on its own samples, in one go or epoch by epoch."""
    if early is not None:
        return _build_until(architecture, local, work, start, early)
    order = torch.sort(work.steps_C, descending=True, stable=True).indices
    trained = _train(architecture.trainer, local, work, start, order, work.steps_C, work.seed)
    back = torch.argsort(order)
    per_epoch_C = _per_epoch(architecture, local, work)
    loss_C = trained.loss_C[back].double().cpu()
    models = _models(trained).take(back.to(trained.flat_CP.device))
    return Built(models, loss_C, work.steps_C / per_epoch_C, torch.isfinite(loss_C))


def _build_until(architecture: Architecture, local: Local, work: Work, start: Models, early: EarlyStopping) -> Built:
    """Epoch by epoch, until a client's loss has not fallen for `patience` epochs; its best weights are kept."""
    per_epoch_C, clients = _per_epoch(architecture, local, work), len(work.client_C)
    now, best = start.clone(), start.clone()
    lowest_C = torch.full((clients,), torch.inf, dtype=torch.float64)
    waited_C, epochs_C, total_C = torch.zeros(clients, dtype=torch.int64), torch.zeros(clients), torch.zeros(clients)
    finite_C = torch.ones(clients, dtype=torch.bool)
    for epoch in itertools.count():
        left_C = (work.steps_C - epoch * per_epoch_C).clamp(min=0).minimum(per_epoch_C)
        here = ((left_C > 0) & (waited_C < early.patience)).nonzero().squeeze(1)
        if not len(here):
            break
        order = here[torch.sort(left_C[here], descending=True, stable=True).indices]
        seed = work.seed if epoch == 0 else key(work.seed, "epoch", epoch)
        trained = _train(architecture.trainer, local, work, now, order, left_C, seed)
        place = order.to(now.flat_CP.device)
        now.put(place, _models(trained))
        training_c = trained.loss_C.double().cpu()
        loss_c = _checked(architecture, work, now, order, training_c)
        better_c = loss_c < lowest_C[order]
        best.put(place[better_c.to(place.device)], now.take(place[better_c.to(place.device)]))
        lowest_C[order] = torch.minimum(lowest_C[order], loss_c)
        waited_C[order] = torch.where(better_c, 0, waited_C[order] + 1)
        epochs_C[order] += left_C[order] / per_epoch_C[order]
        total_C[order] += training_c.float() * left_C[order]
        finite_C[order] &= torch.isfinite(training_c)
    made_C = (epochs_C * per_epoch_C).clamp(min=1)
    return Built(best, (total_C / made_C).double(), epochs_C.double(), finite_C)


def _per_epoch(architecture: Architecture, local: Local, work: Work) -> Tensor:
    size = local.batch_at(work.t, int(work.samples.count_C.max()))
    single = architecture.network.has_batch_statistics()
    return steps_per_epoch(work.samples.count_C, size, single).clamp(min=1)


def _checked(architecture: Architecture, work: Work, now: Models, place_c: Tensor, training_c: Tensor) -> Tensor:
    """The loss that decides: on the samples set aside, or in training for clients without any."""
    if work.check is None or not len(work.check.row_R):
        return training_c
    own = now.take(place_c.to(now.flat_CP.device))

    def models(at: Tensor) -> tuple[Tensor, Tensors]:
        at = at.to(own.flat_CP.device)
        return own.flat_CP[at], {name: value[at] for name, value in own.states.items()}

    found = measure_own(architecture.trainer.workers, Classification(), models, work.check.take(place_c))["loss"]
    return torch.where(found.isnan(), training_c, found)


def _train(
    trainer: Trainer, local: Local, work: Work, start: Models, order: Tensor, steps_C: Tensor, seed: int
) -> Trained:
    """Some of the clients, in this order (most steps first)."""
    own, samples = start.take(order.to(start.flat_CP.device)), work.samples.take(order)
    job = Job(
        client_C=work.client_C[order],
        steps_C=steps_C[order],
        samples=samples,
        start_P=own.flat_CP,
        states=own.states,
        own_states=frozenset(own.states),
        lr=work.lr,
        batch_size=local.batch_at(work.t, int(work.samples.count_C.max())),
        drop_single=trainer.network.has_batch_statistics(),
        seed=seed,
        t=work.t,
        optimizer=local.optimizer,
        slots=own.slots,
        count_C=own.count_C.cpu(),
    )
    return trainer.train(job)


def _models(trained: Trained) -> Models:
    """The trained weights: all columns are personal, so they are what training left, not updates."""
    return Models(trained.flat_CP, trained.states, trained.slots, trained.count_C)


@torch.no_grad()
def predict(architecture: Architecture, models: Models, x: Tensor) -> Tensor:
    """Outputs of every client's model on the same samples [C, R, l], in double precision on the CPU."""
    clients, rows = len(models.flat_CP), len(x)
    found = torch.empty(clients, rows, architecture.classes, dtype=torch.float64)
    like = max(1, len(architecture.shop.x))  # the chunk was measured on batches of this many samples
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


def digest(
    architecture: Architecture, local: Local, distil: Distil, work: Work, models: Models, lessons: Sequence[Lesson]
) -> Models:
    """Teach each client's model its lesson; its optimizer starts anew, and what it carries between rounds is not
    touched. A few clients at a time: each needs the public samples with targets of its own."""
    size = max(1, max(len(lesson.row_B) for lesson in lessons) * lessons[0].x[:1].numel() * 4)
    step, result = max(1, COPIES // size), models.clone()
    for first in range(0, len(lessons), step):
        place = torch.arange(first, min(first + step, len(lessons)))
        at = place.to(models.flat_CP.device)
        some = [lessons[i] for i in place.tolist()]
        taught = _digest_some(architecture, local, distil, work, models.take(at), some, place)
        result.flat_CP[at] = taught.flat_CP
        for name, value in taught.states.items():
            result.states[name][at] = value
    return result


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one client is taught: rows of the public samples, and probabilities of its labels for each."""

    x: Tensor
    row_B: Tensor
    target_Bl: Tensor


def _digest_some(
    architecture: Architecture,
    local: Local,
    distil: Distil,
    work: Work,
    models: Models,
    lessons: Sequence[Lesson],
    place_c: Tensor,
) -> Models:
    trainer, counts = architecture.digester, torch.tensor([len(lesson.row_B) for lesson in lessons])
    x = torch.cat([lesson.x[lesson.row_B.to(lesson.x.device)] for lesson in lessons])
    y = torch.cat([lesson.target_Bl for lesson in lessons]).to(x.device, models.flat_CP.dtype)
    samples = Samples(x.to(y.dtype) if x.is_floating_point() else x, y, torch.arange(len(x)), counts)
    single = trainer.network.has_batch_statistics()
    steps_C = distil.epochs * steps_per_epoch(counts, distil.batch_size, single)
    taught = replace(local, batch_size=distil.batch_size, growing_batch=False)
    lesson_work = replace(
        work,
        client_C=work.client_C[place_c],
        steps_C=steps_C,
        samples=samples,
        check=None,
        lr=work.lr if distil.lr is None else distil.lr,
        seed=key(work.seed, "distil"),
    )
    blank = replace(models, slots={}, count_C=torch.zeros_like(models.count_C))
    order = torch.sort(steps_C, descending=True, stable=True).indices
    trained = _train(trainer, taught, lesson_work, blank, order, steps_C, lesson_work.seed)
    return _models(trained).take(torch.argsort(order).to(trained.flat_CP.device))
