"""Clients' models, by architecture, and what clients of one architecture do, all at once on the engine's trainer: train
on their own samples, with early stopping or without; score the public samples; learn the global scores (distillation).

An architecture is a model with a number of outputs: two clients with the same model and two labels each share one, even
if the labels differ.

Shape letters: C clients, c some of them, P parameters, R public samples, B samples of a client or of a lesson, l labels
of a client.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from turnout.clients.metrics import measure_own
from turnout.clients.store import ClientStore
from turnout.engine.backprop import cross_entropy, soft_cross_entropy
from turnout.engine.gradients import Gradients
from turnout.engine.job import Job
from turnout.engine.network import Network
from turnout.engine.train import Trainer
from turnout.engine.trainers import make_trainer
from turnout.layout import lay_out
from turnout.machine.profiling import stage
from turnout.parts.local import Local, steps_per_epoch
from turnout.parts.personal import everything
from turnout.rng import key, rng
from turnout.running.tracks.building import build_model, check_model
from turnout.scores.exchange import ScoreSetup
from turnout.scores.score_table import targets
from turnout.scores.settings import EarlyStopping, Scores
from turnout.tasks import Classification
from turnout.types import Samples, Tensors

MODEL, ROUND, STATE, SLOT, COUNT = "model", "round", "state/", "slot/", "count"  # names of rows
ROWS = 256  # public samples scored together
COPIES = 256 << 20  # bytes of public samples copied at once


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
        self.template = self._built(setup.experiment.seed)
        highest = torch.full((len(x),), classes - 1)
        check_model(task, self.template, x.cpu().float() if x.is_floating_point() else x.cpu(), highest)
        self.layout = lay_out(self.template, everything)
        self.module = self._built(setup.experiment.seed).to(place.device, place.dtype)
        self.network = Network.of(self.module, self.layout, task.loss)
        self.trainer = make_trainer(self.settings, self.network, cross_entropy, x, highest.to(place.device))
        self.batch_statistics = self.network.has_batch_statistics()
        self.key = f"{number}x{classes}"  # its name in files
        first = self._models(self.template, 1).to_rows(-1, algorithm.moments == "local")
        self.store = ClientStore({name: row_1[0].cpu() for name, row_1 in first.items()})

    def _built(self, seed: int) -> nn.Module:
        return build_model(self.setup.plan.models[self.number], tuple(self.x.shape[1:]), self.classes, seed)

    @cached_property
    def distiller(self) -> Trainer:
        """The trainer for targets that are probabilities."""
        network = Network.of(self.module, self.layout, against_probabilities)
        size = (len(self.x), self.classes)
        y = torch.full(size, 1 / self.classes, dtype=self.place.dtype, device=self.x.device)
        engine = "auto" if self.settings.engine == "native" else self.settings.engine  # that one has no such targets
        return make_trainer(replace(self.settings, engine=engine), network, soft_cross_entropy, self.x, y)

    @property
    def bytes(self) -> int:
        """Bytes of sending the model once: floats as four bytes."""
        buffers = [b.numel() for b in self.template.buffers() if b.is_floating_point()]
        return 4 * (self.layout.width + sum(buffers))

    def fresh(self, t: int, clients: int) -> ClientModels:
        """New models for a round: the same for all clients that start then with this architecture."""
        return self._models(self._built(key(self.setup.experiment.seed, "fresh", t)), clients)

    def _models(self, built: nn.Module, clients: int) -> ClientModels:
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


def against_probabilities(output: Tensor, target: Tensor) -> Tensor:
    """-Σ p log q per sample, p with the sum 1."""
    return -(target * log_softmax(output, -1)).sum(-1)


# -- training


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


def build(architecture: Architecture, algorithm: Scores, work: LocalWork, start: ClientModels) -> Built:
    """Train each client's model on its own samples."""
    local, count_C = algorithm.local, work.samples.count_C
    per_epoch_C = steps_per_epoch(count_C, local.batch_size, architecture.batch_statistics).clamp(min=1)
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
        own_states=frozenset(own.states), lr=work.lr, batch_size=local.batch_size,
        drop_single=trainer.network.has_batch_statistics(), seed=seed, t=work.t, optimizer=local.optimizer,
        clip=local.clip, at_once=None if local.accumulate in (None, 1) else local.at_once,
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
    architecture: Architecture, algorithm: Scores, client_C: Tensor, models: ClientModels, means: Sequence[Tensor],
    open_R: Tensor, x: Tensor, lr: float, t: int, seed: int,
) -> ClientModels:  # fmt: skip
    """Train each client's model on the open samples for which all of its labels have a score, with these scores as
    targets; the optimizer is new, and its state is not carried to the next round. A few clients at a time: each needs
    the public samples with targets of its own."""
    how, dtype = algorithm.distil, models.flat_CP.dtype
    assert how is not None
    rows = [(open_R & ~mean_Rl.isnan().any(1)).nonzero().squeeze(1) for mean_Rl in means]
    local = replace(algorithm.local, batch_size=how.batch_size)
    result, lr = models.clone(), lr if how.lr is None else how.lr
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
        own = LocalWork(client_C[place_c], steps_c, samples, None, lr, t, key(seed, "distil"))
        taught, _ = train(architecture.distiller, local, own, blank, order, steps_c, own.seed)
        result.put(place_c, replace(taught.take(torch.argsort(order)), slots=before.slots, count_C=before.count_C))
    return result
