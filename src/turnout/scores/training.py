"""What clients of one architecture do, all at once on the engine's trainer: train their models on their own samples,
with early stopping or without; score the public samples; learn the global scores (distillation).

Shape letters: C clients, c some of them, P parameters, R public samples, B samples of a client or of a lesson, l labels
of a client.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.clients.metrics import measure_own
from turnout.engine.gradients import Gradients
from turnout.engine.job import Job
from turnout.engine.train import Trainer
from turnout.machine.profiling import stage
from turnout.parts.local import Local, steps_per_epoch
from turnout.rng import key, rng
from turnout.scores.architectures import Architecture, ClientModels
from turnout.scores.score_table import targets
from turnout.scores.settings import EarlyStopping, Scores
from turnout.tasks import Classification
from turnout.types import Samples, Tensors

ROWS = 256  # public samples scored together
COPIES = 256 << 20  # bytes of public samples copied at once


@dataclass(frozen=True)
class LocalWork:
    """Local training of clients of one architecture.

    client_C  the clients
    steps_C   steps of each
    samples   their samples
    check     samples that early stopping measures the loss on (a client may have none)
    lr        the learning rate
    t         the round
    seed      of the order of samples
    """

    client_C: Tensor
    steps_C: Tensor
    samples: Samples
    check: Samples | None
    lr: float
    t: int
    seed: int

    def take(self, place_c: Tensor) -> LocalWork:
        """The work of some of them."""
        check = None if self.check is None else self.check.take(place_c)
        own = replace(self, client_C=self.client_C[place_c], steps_C=self.steps_C[place_c], check=check)
        return replace(own, samples=self.samples.take(place_c))


@dataclass(frozen=True)
class Built:
    """The outcome of local training.

    models    the trained models
    loss_C    mean training loss
    epochs_C  epochs made
    finite_C  whether all losses were finite
    """

    models: ClientModels
    loss_C: Tensor
    epochs_C: Tensor
    finite_C: Tensor

    def take(self, place_c: Tensor) -> Built:
        """The outcome for some of them."""
        return Built(self.models.take(place_c), self.loss_C[place_c], self.epochs_C[place_c], self.finite_C[place_c])


def build(architecture: Architecture, algorithm: Scores, work: LocalWork, start: ClientModels) -> Built:
    """Train each client's model on its own samples."""
    local, count_C = algorithm.local, work.samples.count_C
    per_epoch_C = steps_per_epoch(count_C, local.batch_of(count_C, work.t), architecture.batch_statistics).clamp(min=1)
    if algorithm.early is not None:
        return build_until(architecture, local, work, start, algorithm.early, per_epoch_C)
    order = most_first(work.steps_C)
    models, loss_C = train(architecture.trainer, local, work, start, order, work.steps_C, work.seed)
    back = torch.argsort(order)
    loss_C = loss_C[back]
    return Built(models.take(back), loss_C, work.steps_C / per_epoch_C, torch.isfinite(loss_C))


def most_first(steps_C: Tensor) -> Tensor:
    """The order in which the trainer takes clients: most steps first."""
    return torch.sort(steps_C, descending=True, stable=True).indices


def train(
    trainer: Trainer, local: Local, work: LocalWork, start: ClientModels, order: Tensor, steps_C: Tensor, seed: int
) -> tuple[ClientModels, Tensor]:
    """Train some of the clients, in this order (most steps first): their models, and the mean training loss of each.

    All columns are personal, so the trainer returns weights, not updates.
    """
    own, samples = start.take(order), work.samples.take(order)
    job = Job(
        client_C=work.client_C[order], steps_C=steps_C[order], samples=samples, start_P=own.flat_CP, states=own.states,
        own_states=frozenset(own.states), lr=work.lr, batch_size=local.batch_of(work.samples.count_C, work.t),
        drop_single=trainer.network.has_batch_statistics(), seed=seed, t=work.t, optimizer=local.optimizer,
        slots=own.slots, count_C=own.count_C.cpu(),
    )  # fmt: skip
    with stage("local training"):
        trained = trainer.train(job)
    models = ClientModels(trained.flat_CP, trained.states, trained.slots, trained.count_C)
    return models, trained.loss_C.double().cpu()


@torch.no_grad()
def predict(architecture: Architecture, models: ClientModels, x: Tensor) -> Tensor:
    """Outputs of every client's model on the same samples [C, R, l], in double precision on the CPU."""
    clients, rows = len(models.flat_CP), len(x)
    found = torch.empty(clients, rows, architecture.classes, dtype=torch.float64)
    like = max(1, len(architecture.x))  # the chunk was measured on batches of this many samples
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


# -- early stopping


def split_off(samples: Samples, client_C: Tensor, share: float, seed: int, t: int) -> tuple[Samples, Samples]:
    """A random share of each client's samples, rounded down, set aside for early stopping: (the rest, those)."""
    rest, taken = [], []
    for client, row_B in zip(client_C.tolist(), samples.row_R.split(samples.count_C.tolist()), strict=True):
        order = torch.randperm(len(row_B), generator=rng(seed, "early stopping", t, client)).to(row_B.device)
        count = int(share * len(row_B))
        rest.append(row_B[order[count:].sort().values])
        taken.append(row_B[order[:count]])
    first, second = (
        Samples(samples.x, samples.y, torch.cat(rows), torch.tensor([len(own) for own in rows]))
        for rows in (rest, taken)
    )
    return first, second


def build_until(
    architecture: Architecture, local: Local, work: LocalWork, start: ClientModels, early: EarlyStopping,
    per_epoch_C: Tensor,
) -> Built:  # fmt: skip
    """Train epoch by epoch, until a client's loss has not fallen for `patience` epochs; its best weights are kept."""
    now, best, zero_C = start.clone(), start.clone(), torch.zeros(len(start.flat_CP))
    lowest_C = torch.full_like(zero_C, torch.inf, dtype=torch.float64)
    waited_C, epochs_C, total_C = zero_C.long(), zero_C.clone(), zero_C.clone()  # the loss is summed over steps
    finite_C = torch.ones_like(zero_C, dtype=torch.bool)
    for epoch in itertools.count():
        left_C = (work.steps_C - epoch * per_epoch_C).clamp(min=0).minimum(per_epoch_C)
        here = ((left_C > 0) & (waited_C < early.patience)).nonzero().squeeze(1)
        if not len(here):
            break
        place_c = here[most_first(left_C[here])]
        seed = work.seed if epoch == 0 else key(work.seed, "epoch", epoch)
        models, loss_c = train(architecture.trainer, local, work, now, place_c, left_C, seed)
        now.put(place_c, models)
        epochs_C[place_c] += left_C[place_c] / per_epoch_C[place_c]
        total_C[place_c] += loss_c.float() * left_C[place_c]
        finite_C[place_c] &= torch.isfinite(loss_c)
        deciding_c = loss_c
        if work.check is not None and len(work.check.row_R):  # on the samples set aside, for clients that have some
            own = replace(now.take(place_c), slots={})

            def of_some(at: Tensor, own: ClientModels = own) -> tuple[Tensor, Tensors]:
                some = own.take(at)
                return some.flat_CP, some.states

            checked = measure_own(architecture.trainer.workers, Classification(), of_some, work.check.take(place_c))
            deciding_c = torch.where(checked["loss"].isnan(), loss_c, checked["loss"])
        better_c = deciding_c < lowest_C[place_c]
        best.put(place_c[better_c], now.take(place_c[better_c]))
        lowest_C[place_c] = torch.minimum(lowest_C[place_c], deciding_c)
        waited_C[place_c] = torch.where(better_c, 0, waited_C[place_c] + 1)
    made_C = (epochs_C * per_epoch_C).clamp(min=1)
    return Built(best, (total_C / made_C).double(), epochs_C.double(), finite_C)


# -- distillation


def distil(
    architecture: Architecture, algorithm: Scores, work: LocalWork, models: ClientModels, means: Sequence[Tensor],
    open_R: Tensor, x: Tensor,
) -> ClientModels:  # fmt: skip
    """Train each client's model on the open samples for which all of its labels have a score, with these scores as
    targets; the optimizer is new, and its state is not carried to the next round. A few clients at a time: each needs
    the public samples with targets of its own."""
    how, dtype = algorithm.distil, models.flat_CP.dtype
    assert how is not None
    rows = [(open_R & ~mean_Rl.isnan().any(1)).nonzero().squeeze(1) for mean_Rl in means]
    local = replace(algorithm.local, batch_size=how.batch_size, growing_batch=False)
    result, lr = models.clone(), work.lr if how.lr is None else how.lr
    size = max(1, max(map(len, rows)) * x[:1].numel() * 4)
    for place_c in torch.arange(len(rows)).split(max(1, COPIES // size)):
        places, before = place_c.tolist(), models.take(place_c)
        blank = replace(before, slots={}, count_C=torch.zeros_like(before.count_C))
        pool = torch.cat([x[rows[i].to(x.device)] for i in places])
        y = torch.cat([targets(means[i][rows[i]], algorithm.scores) for i in places]).to(x.device, dtype)
        count_c = torch.tensor([len(rows[i]) for i in places])
        pool = pool.to(dtype) if pool.is_floating_point() else pool
        steps_c = how.epochs * steps_per_epoch(count_c, how.batch_size, architecture.batch_statistics)
        samples, order = Samples(pool, y, torch.arange(len(pool)), count_c), most_first(steps_c)
        own = LocalWork(work.client_C[place_c], steps_c, samples, None, lr, work.t, key(work.seed, "distil"))
        taught, _ = train(architecture.distiller, local, own, blank, order, steps_c, own.seed)
        result.put(place_c, replace(taught.take(torch.argsort(order)), slots=before.slots, count_C=before.count_C))
    return result
