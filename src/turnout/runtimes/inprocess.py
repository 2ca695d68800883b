"""The default runtime: every client of a cohort simulated in this process, vectorised.

It holds what real devices would hold themselves: their data and the state they keep between rounds. It returns the
turnout that was drawn, and trains only those whose work counts.

Shape letters: C clients of the cohort, R participants.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from turnout.activations import blank
from turnout.compression import Dense
from turnout.data import Federation
from turnout.engine.batches import steps_per_epoch
from turnout.engine.crew import Crew
from turnout.engine.gradients import ByHand, Gradients, Looped, Network, Vmapped, fastest
from turnout.engine.layout import Layout
from turnout.engine.losses import Loss, loss_by_hand
from turnout.engine.native import Native
from turnout.engine.replays import Batch
from turnout.engine.train import Trainer
from turnout.errors import Mistake
from turnout.evaluation import measure_clients, objective_gradient
from turnout.events import Calendar, Event
from turnout.exchange import ClientWork, Download, Server
from turnout.kept import Kept, initial_rows, kept_from
from turnout.local import Local
from turnout.members import Members
from turnout.memory import keep_freed_memory
from turnout.participation import Participation, finished
from turnout.round import client_work
from turnout.runtimes.settings import InProcess, cores
from turnout.settings import Algorithm, Evaluate
from turnout.store import ClientStore
from turnout.task import TaskSpec
from turnout.types import Replies, State, Tensors, Turnout, flatten, unflatten
from turnout.watching import Watch

TOLD = 64  # clients whose rows are rewritten together when a round has ended
NOT_IN_C = (
    "runtime.engine = 'native' needs a C compiler (cc, gcc, clang or $CC) and a model of at most 1 MiB on a CPU: an "
    "nn.Sequential of Linear, Conv2d, MaxPool2d, ReLU and Flatten layers under the classification task; use 'auto'"
)
CACHE = {"by-hand": 4 << 20, "vmap": 16 << 20}  # bytes a chunk may touch on a CPU: measured in benchmarks/chunk.py


@dataclass(frozen=True)
class Model:
    """A model ready for training: the module, its groups, and its first weights."""

    module: nn.Module
    layout: Layout
    flat_P: Tensor
    states: Tensors


class InProcessRuntime:
    """Simulated clients."""

    def __init__(
        self,
        settings: InProcess,
        federation: Federation,
        participation: Participation,
        algorithm: Algorithm,
        task: TaskSpec,
        model: Model,
        seed: int,
        calendar: Calendar | None = None,
        evaluate: Evaluate = Evaluate(),  # noqa: B008 (frozen)
    ):
        self.device, self.dtype = place_of(settings)
        self.federation = federation.to(self.device)
        self.participation, self.calendar = participation, calendar or Calendar()
        self.algorithm, self.seed = algorithm, seed
        self.task, self.evaluate = task, evaluate
        self.groups = federation.groups()
        module = model.module.to(self.device, self.dtype)
        self.network = Network.of(module, model.layout, task.loss)
        self.drop_single = self.network.has_batch_statistics()
        states = {n: v.to(self.dtype) if v.is_floating_point() else v for n, v in model.states.items()}
        rows = initial_rows(model.layout, model.flat_P.to(self.dtype), states, algorithm)
        rows |= {f"seen/{n}": v.to(self.dtype) for n, v in blank(module).items()} if evaluate.activations else {}
        self.store = ClientStore(rows)
        self.trainer = self._trainer(settings, task)
        self._total: int | None = None

    def _trainer(self, settings: InProcess, task: TaskSpec) -> Trainer:
        sample = self.federation.train(torch.tensor([_first_with_data(self.federation)]), 0)
        x, y = sample.of(0)
        size = self.algorithm.local.batch_size
        x = x[:size].to(self.dtype) if x.is_floating_point() else x[:size]
        return make_trainer(settings, self.network, loss_by_hand(task), x, y[:size])

    def placed(self, value: Tensor) -> Tensor:
        """A tensor on this runtime's device, floats in its precision."""
        return value.to(self.device, self.dtype) if value.is_floating_point() else value.to(self.device)

    def placed_tree(self, tree: State) -> State:
        """The same for a state tree."""
        tensors, plain = flatten(tree)
        return unflatten({name: self.placed(value) for name, value in tensors.items()}, plain)

    @property
    def layout(self) -> Layout:
        return self.network.layout

    def examples(self, client_C: Tensor) -> Tensor:
        return self.federation.examples(client_C).cpu()

    def mean_examples(self, members: Members) -> float:
        """The population is counted once; from then on those who are in or out of it."""
        if self._total is None:
            self._total = int(self.examples(torch.arange(members.population)).sum())
        moved = int(self.examples(members.added_J).sum()) - int(self.examples(members.removed_L).sum())
        return (self._total + moved) / max(1, len(members))

    def events(self, t: int) -> Sequence[Event]:
        return self.calendar.at(t)

    def forget(self, client_I: Tensor) -> tuple[Tensor, dict[str, Tensors]]:
        client_I = client_I[self.store.knows(client_I)]
        mine = self._mine(client_I)
        said = {term.name: term.farewell(mine.get(term.name, {})) for term in self.algorithm.terms}
        for client in client_I.tolist():
            self.store.forget(client)
        return client_I, said

    def tell(self, client_R: Tensor, told: dict[str, Tensors]) -> None:
        for client_c in client_R.split(TOLD):
            mine = self._mine(client_c)
            for term in self.algorithm.terms:
                if term.name in told:
                    kept = term.hear(told[term.name], mine[term.name])
                    self.store.scatter(client_c, {f"mine/{term.name}/{n}": v for n, v in kept.items()})

    def _mine(self, client_I: Tensor) -> dict[str, Tensors]:
        """What the terms keep for some clients."""
        return kept_from(self.store.gather(client_I, lambda n: n.startswith("mine/")), len(client_I), self.device).mine

    def left_behind(self, client_L: Tensor) -> dict[str, Tensors]:
        names = [term.name for term in self.algorithm.terms if term.remembers]
        mine = kept_from(self.store.gather(client_L, _of_terms(names)), len(client_L), self.device).mine
        return {name: mine.get(name, {}) for name in names}

    def gradient(self, server: Server, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        """What is personal has its first values, as in the model that is evaluated."""
        here_C = self._turn_out(client_C, t)[0].present_C
        first, layout = self.store.initial, self.layout
        personal_Q = first.get("personal", server.shared_P.new_empty(0)).to(server.shared_P)
        states = {name: self.placed(first[f"state/{name}"]) for name in layout.personal_states}
        states |= {name: server.states[name] for name in layout.shared_states}
        flat_P = torch.cat([server.shared_P, personal_Q])
        found_P = self._mean_gradient(flat_P, states, client_C[here_C], share_C[here_C], t)
        if found_P is not None and not bool(torch.isfinite(found_P).all()):  # a loss that is no number is no answer
            samples = self.federation.train(client_C[here_C], t)
            loss_C = measure_clients(self.trainer.crew, self.task, flat_P, states, samples)["loss"]
            here_C[here_C.clone()] = torch.isfinite(loss_C)
            found_P = self._mean_gradient(flat_P, states, client_C[here_C], share_C[here_C], t)
        return None if found_P is None else found_P[: layout.shared]

    def _mean_gradient(
        self, flat_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int
    ) -> Tensor | None:
        if not len(client_C):
            return None
        samples = self.federation.train(client_C, t)
        return objective_gradient(self.trainer.crew, flat_P, states, samples, share_C / share_C.sum())

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        """Draw who turns up, train those whose work is used, keep what they keep."""
        turnout, steps_C = self._turn_out(client_C, download.t)
        row_R = self.algorithm.weighting.counts(turnout).nonzero().squeeze(1)
        if len(row_R) == 0:
            return turnout, None
        row_R = row_R[torch.sort(steps_C[row_R], descending=True, stable=True).indices]
        client_R = client_C[row_R]
        scale_C = self.algorithm.weighting.client_scale(turnout)
        by_client = self.algorithm.scale_at == "client" and not bool((scale_C[row_R] == 1).all())
        work = self._work(client_R, steps_C[row_R], scale_C[row_R] if by_client else None, download.t)
        work = replace(work, watch=self._watch(client_R, download.t))
        kept = self.kept(client_R, download.states)
        replies, kept = client_work(self.trainer, self.algorithm, download, work, kept, self.seed)
        good_R = replies.report["finite"]
        if bool(good_R.any()):
            self.store.scatter(client_R[good_R], {n: v[good_R.to(v.device)] for n, v in kept.to_rows().items()})
        return turnout, replies

    def would_send(self, client_C: Tensor, download: Download) -> tuple[Tensor, Tensor]:
        """Clients, and the updates that they would send after complete work, unscaled and dense; nothing is kept of it.

        On a GPU the updates of an earlier call or round are overwritten.
        """
        local, everything_C = self.algorithm.local, torch.ones(len(client_C), dtype=torch.float64)
        _, steps_C = turn_out(client_C, everything_C, self.examples(client_C), local, self.drop_single, download.t)
        row_R = torch.sort(steps_C, descending=True, stable=True).indices
        row_R = row_R[steps_C[row_R] > 0]
        client_R = client_C[row_R]
        if len(client_R) == 0:
            return client_R, download.shared_P.new_empty(0, len(download.shared_P))
        kept = self.kept(client_R, download.states)
        plain = replace(self.algorithm, compression=Dense())
        work = self._work(client_R, steps_C[row_R], None, download.t)
        replies, _ = client_work(self.trainer, plain, download, work, kept, self.seed)
        return client_R, replies.message.tensors["update"]

    def _work(self, client_R: Tensor, steps_R: Tensor, scale_R: Tensor | None, t: int) -> ClientWork:
        samples = self.federation.train(client_R, t)
        if samples.x.is_floating_point() and samples.x.dtype != self.dtype:
            samples = replace(samples, x=samples.x.to(self.dtype))
        return ClientWork(client_R, steps_R, scale_R, samples, self.drop_single)

    def kept(self, client_C: Tensor, states: Tensors, wanted: Callable[[str], bool] = lambda name: True) -> Kept:
        """What these clients have of their own; who is new begins with the average, where it is among the states."""
        kept = kept_from(self.store.gather(client_C, wanted), len(client_C), self.device)
        return kept.welcome(~self.store.knows(client_C), states)

    def _watch(self, client_R: Tensor, t: int) -> Watch | None:
        asked = self.evaluate
        if not (asked.recovery or asked.gradients or asked.activations):
            return None
        noisy_N = self.federation.noisy()
        return Watch(
            asked, self.task, self.federation.test(client_R, t), None if noisy_N is None else noisy_N[client_R]
        )

    def _turn_out(self, client_C: Tensor, t: int) -> tuple[Turnout, Tensor]:
        local = self.algorithm.local
        finished_C = finished(self.participation, client_C, t, local.full_work, self.seed, self.groups)
        return turn_out(client_C, finished_C, self.examples(client_C), local, self.drop_single, t)


def turn_out(
    client_C: Tensor, fraction_C: Tensor, examples_C: Tensor, local: Local, drop_single: bool, t: int = 0
) -> tuple[Turnout, Tensor]:
    """Fractions of the work as whole mini-batches, and the turnout they make.

    A fraction is rounded down to whole mini-batches; less than one is an absence.
    """
    size = local.batch_at(t, int(examples_C.max()) if len(examples_C) else 1)
    full_C = local.full_steps(steps_per_epoch(examples_C, size, drop_single))
    steps_C = (fraction_C * full_C + 1e-6).floor().long().clamp(max=full_C)
    work_C = torch.where(steps_C > 0, steps_C.double() / full_C.clamp(min=1) * local.full_work, 0.0)
    progress = local.optimizer.progress
    return Turnout(client_C, work_C, local.full_work, progress(steps_C), progress(full_C)), steps_C


def make_trainer(settings: InProcess, network: Network, loss: Loss | None, x: Tensor, y: Tensor) -> Trainer:
    """A trainer for a network, its chunks measured on a batch like those it will see."""
    gradients = pick_gradients(settings.engine, network, loss)
    if not isinstance(gradients, Looped):
        gradients = checked_gradients(gradients, network, x, y)
    cost = client_bytes(network, x, y)
    on_gpu = x.device.type == "cuda"
    threads = 1 if on_gpu else settings.threads or cores()
    if on_gpu:
        room = torch.cuda.mem_get_info(x.device)[0] // 2
    else:
        torch.set_num_threads(1)  # here too: a crew of one works in this thread
        room = CACHE["vmap" if isinstance(gradients, Vmapped) else "by-hand"]
    chunk = settings.chunk or max(1, min(room // cost, 1024 if on_gpu else 256))
    asked = settings.engine in ("auto", "native")
    native = Native.of(gradients.stack, network.layout, x) if asked and isinstance(gradients, ByHand) else None
    if settings.engine == "native" and native is None:
        raise Mistake(NOT_IN_C)
    return Trainer(network, Crew(gradients, threads), chunk, cost, settings.chunk is not None, native)


def place_of(settings: InProcess) -> tuple[torch.device, torch.dtype]:
    """Where a run computes and in which numbers; torch is told so."""
    device = pick_device(settings.device)
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)  # steps are captured on the current one
        torch.backends.cuda.matmul.allow_tf32 = settings.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = settings.precision == "tf32"
    else:
        keep_freed_memory()
    return device, torch.float64 if settings.precision == "float64" else torch.float32


def pick_device(name: str) -> torch.device:
    """The device meant by a setting."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Mistake(f"runtime.device = {name!r} is no device: use 'auto', 'cpu' or 'cuda'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Mistake("runtime.device = 'cuda', but no GPU is available here: use 'auto' or 'cpu'")
    return device


def pick_gradients(engine: str, network: Network, loss: Loss | None) -> Gradients:
    """The gradients meant by a setting."""
    if engine == "loop":
        return Looped(network)
    if engine == "vmap":
        return Vmapped(network)
    gradients = fastest(network, loss)
    if engine == "by-hand" and isinstance(gradients, Vmapped):
        raise Mistake(
            "runtime.engine = 'by-hand' needs an nn.Sequential of Linear, Conv2d, BatchNorm, MaxPool2d, ReLU, Softmax, "
            "Flatten and Dropout layers under the classification or regression task: use 'auto'"
        )
    return gradients


def checked_gradients(gradients: Gradients, network: Network, x: Tensor, y: Tensor) -> Gradients:
    """The same gradients, or the plain loop (with a warning) for a model that cannot be vectorised."""
    flat_cP = network.layout.pack(dict(network.module.named_parameters())).expand(2, -1).clone()
    states = {n: b.expand(2, *b.shape).clone() for n, b in network.module.named_buffers() if n in network.layout.states}
    keys_ck = torch.zeros(2, len(network.dropout_keys), dtype=torch.int64, device=flat_cP.device)
    batch = Batch(torch.stack([x, x]), torch.stack([y, y]), None, keys_ck)
    try:
        gradients.gradient(flat_cP, states, batch, torch.empty_like(flat_cP))
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0][:160]
        warnings.warn(
            f"this model cannot be vectorised, so clients train one at a time, slowly: {reason}", stacklevel=2
        )
        return Looped(network)
    return gradients


def client_bytes(network: Network, x: Tensor, y: Tensor) -> int:
    """What one client's local step touches: its weights, and what the forward pass saves for the backward one."""
    total = 0

    def count(saved: Tensor) -> Tensor:
        nonlocal total
        total += saved.numel() * saved.element_size()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(count, count):
        network.module.eval()
        network.loss(network.module(x), y).mean()
    return total + network.layout.width * x.element_size()


def _of_terms(names: Sequence[str]) -> Callable[[str], bool]:
    """Which rows of the store these terms keep."""
    return lambda row: any(row.startswith(f"mine/{name}/") for name in names)


def _first_with_data(federation: Federation) -> int:
    """Some client that holds samples, to measure the model with."""
    for first in range(0, federation.clients, 1024):
        some = torch.arange(first, min(first + 1024, federation.clients))
        held = (federation.examples(some).cpu() > 0).nonzero()
        if len(held):
            return first + int(held[0])
    raise Mistake("no client holds any training sample: look at world.data")
