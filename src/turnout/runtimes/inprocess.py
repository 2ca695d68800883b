"""The default runtime: every client of a cohort simulated in this process, vectorised.

It holds what real devices would hold themselves: their data and the state they keep between rounds. It returns the
turnout that was drawn, and trains only those whose work counts.

Shape letters: C clients of the cohort, R participants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from turnout.clients.state import Kept, initial_rows, kept_from
from turnout.clients.store import ClientStore
from turnout.data import Federation
from turnout.engine.gradients import Network
from turnout.engine.losses import loss_by_hand
from turnout.engine.train import Trainer
from turnout.engine.trainers import make_trainer, place_of
from turnout.errors import Mistake
from turnout.evaluation.activations import blank
from turnout.evaluation.metrics import measure_clients, objective_gradient
from turnout.evaluation.probes import Watch
from turnout.exchange import ClientWork, Download, Server
from turnout.experiment import Algorithm, Evaluate
from turnout.layout import Layout
from turnout.parts.compression.base import Dense
from turnout.parts.local import turn_out
from turnout.round import client_work
from turnout.runtimes.settings import InProcess
from turnout.task import TaskSpec
from turnout.types import Replies, State, Tensors, Turnout, flatten, unflatten
from turnout.world.events import Calendar, Event
from turnout.world.members import Members
from turnout.world.participation import Participation, finished

TOLD = 64  # clients whose rows are rewritten together when a round has ended


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
