"""Clients at work: their samples, the rows they keep, and a trainer for them.

A `ClientPool` works for a set of clients: all of them in this process (inprocess.py), a part of a cohort in another
process, a single one on a device. It never sees the server: it takes a download and an assignment, and returns replies.
New rows are stored when the server has used the replies (`commit`).

Shape letters: C, I any clients, R participants, c clients of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.clients.activations import blank
from turnout.clients.calibration import Calibration
from turnout.clients.metrics import Models, measure, measure_clients, measure_own, objective_gradient
from turnout.clients.probes import WorkHooks
from turnout.clients.state import ClientState, central_model, initial_rows, state_from
from turnout.clients.store import ClientStore
from turnout.clients.work import client_work
from turnout.data import Federation
from turnout.engine.backprop import loss_by_hand
from turnout.engine.job import Job, plain_sgd
from turnout.engine.network import Network
from turnout.engine.train import order_bytes
from turnout.engine.trainers import base_type, make_trainer
from turnout.errors import UserError
from turnout.exchange import Assignment, Departure, Download, Measure, Measured, Outbox, states_to_send
from turnout.experiment import Algorithm
from turnout.inputs import Inputs, tensors_of
from turnout.machine.profiling import stage
from turnout.models.adapters import Adapted
from turnout.models.quantized import PACKED, frozen_bytes, pack
from turnout.parts.compression.base import Dense
from turnout.parts.terms.base import Departures, PersonalModel, as_quadratic, remembers, sends, terms_bytes
from turnout.runtimes.setup import Model, Setup
from turnout.types import Message, Replies, Samples, Tensors
from turnout.world.attacks import attackers_of

# of one model: modules to train and to measure, first values, the server's, and those of a step of the server
COPIES = 8
LOOKED_AT = 100_000  # clients, when the memory that a run needs is counted


class ClientPool:
    """Some clients, simulated or real, and what they need to work."""

    def __init__(self, setup: Setup):
        experiment, algorithm = setup.experiment, setup.algorithm
        self.algorithm, self.task, self.seed = algorithm, experiment.task, experiment.seed
        self.evaluate, self.place = experiment.evaluate, setup.place
        self.federation = setup.data.to(self.place.device)
        first, place = setup.model, setup.place  # first values stay in the memory of the CPU
        states = {n: v.to(place.dtype) if v.is_floating_point() else v for n, v in first.states.items()}
        rounded = base_type(experiment.runtime.compute, first.module)
        module = place.put_module(first.module, rounded)
        if experiment.runtime.compute.base_precision in PACKED:
            module = pack(module, experiment.runtime.compute.base_precision)
        self.model = Model(module, first.layout, first.flat_P.to(place.dtype), states)
        how = (getattr(self.task, "positions", None), getattr(self.task, "models_own", False))
        self.network = Network.of(self.model.module, self.model.layout, self.task.loss, *how, rounded)
        self.drop_single = self.network.has_batch_statistics()
        if self.drop_single and (algorithm.local.accumulate or 1) > 1:
            raise UserError(
                "algorithm.local.accumulate divides mini-batches, and BatchNorm needs whole ones: leave it out"
            )
        self.probes = self.evaluate.recovery or self.evaluate.gradients or self.evaluate.activations
        rows = initial_rows(first.layout, self.model.flat_P, states, algorithm)
        seen = blank(module) if self.evaluate.activations else {}
        rows |= {f"seen/{name}": value.to(place.dtype) for name, value in seen.items()}
        self.store = ClientStore(rows, device=place.device, device_limit=place.share())
        x, y = self.federation.train(_first_with_data(self.federation), 0).of(0, most=algorithm.local.at_once)
        x = x.to(place.dtype) if x.is_floating_point() else x
        loss, optimizer = loss_by_hand(self.task), algorithm.local.optimizer
        self.trainer = make_trainer(experiment.runtime.compute, self.network, loss, x, y, optimizer)
        world = experiment.world
        self.attackers = attackers_of(world.attack, world.attackers, self.federation.clients, self.seed)
        self.adapter = experiment.model.adapter if isinstance(experiment.model, Adapted) else None
        self.pending: tuple[Tensor, Tensors] | None = None  # clients and rows that are held for the last round

    # -- a round

    def work(self, download: Download, asked: Assignment, dense: bool = False) -> tuple[Replies, Tensors]:
        """The replies of the clients that work, and the rows they would keep, `pending` a commit; nothing is kept yet.

        `dense`: do not encode updates, for work that is only looked at; nothing is probed then, and no client attacks.
        """
        client_R, t = asked.client_R, download.t
        state = self.state(client_R, download.states, download.outbox)
        if self.algorithm.newcomers == "calibrated":
            place_I, statistics = self._calibrated(client_R, download.start, download.states, t)
            state = state.with_statistics(place_I, statistics) if len(place_I) else state
        algorithm, hooks = self.algorithm, None
        if dense:
            algorithm = replace(algorithm, compression=Dense())
        elif self.attackers is not None or self.probes:
            central = central_model(self.model.layout, download.shared_P, download.states)
            tests = cache(partial(self.federation.test, client_R, t))
            noisy_R = self._noisy(client_R) if self.probes else None
            hooks = WorkHooks(self.evaluate, self.task, tests, noisy_R, central, self.attackers)
        job = self._job(algorithm, state, download, asked, magnitudes=self.evaluate.gradients and not dense)
        return client_work(self.trainer, algorithm, job, state, hooks)

    def _job(
        self, algorithm: Algorithm, state: ClientState, download: Download, asked: Assignment, magnitudes: bool
    ) -> Job:
        """The local work of clients: from what they download and what they have of their own."""
        layout, local, client_R = self.model.layout, algorithm.local, asked.client_R
        start_P, samples = download.start(client_R), self._samples(client_R, download.t)
        start_P, held_CP = state.start(start_P) if layout.width > layout.shared else start_P, self._held(client_R)
        slots, count_R = state.moments(download.states, layout) if local.optimizer.slots else ({}, None)
        return Job(
            client_C=client_R,
            steps_C=asked.steps_R,
            samples=samples,
            start_P=start_P if held_CP is None else start_P * held_CP,
            held_CP=held_CP,
            states={name: download.states[name] for name in layout.shared_states} | state.states,
            own_states=frozenset(state.states),
            lr=download.lr,
            batch_size=local.batch_size,
            drop_single=self.drop_single,
            seed=self.seed,
            t=download.t,
            optimizer=local.optimizer,
            slots=slots,
            count_C=count_R,
            scale_C=asked.scale_R,
            limit=asked.limit,
            terms=algorithm.terms,
            server_term_states=download.term_states,
            term_states=state.term_states,
            magnitudes=magnitudes,
            lengths=algorithm.privacy is not None and isinstance(algorithm.compression, Dense),
            clip=local.clip,
            at_once=None if local.accumulate in (None, 1) else local.at_once,
        )

    def _held(self, client_C: Tensor) -> Tensor | None:
        """Which columns each of these clients has, where adapters have different ranks; None: all."""
        held_CP = None if self.adapter is None else self.adapter.held(self.model.layout.slots, client_C.cpu())
        return None if held_CP is None else held_CP.to(self.place.device)

    def unfinished(self, client_I: Tensor, download: Download) -> Replies:
        """Reports of clients whose work does not count about their download: the model they held, and terms' bytes."""
        wanted = ("term/", *(f"residual/{name}" for name in self.algorithm.compression.reported))
        rows = self.state(client_I, {}, Outbox(), lambda name: name.startswith(wanted))
        held = Message(self.algorithm.compression.held(rows.residuals), torch.zeros_like(client_I))
        bytes_I = terms_bytes(self.algorithm.terms, download.term_states, rows.term_states, len(client_I))
        return Replies(client_I, held, report={"bytes_down": bytes_I})

    def commit(self, client_R: Tensor) -> None:
        """Store the new rows of these clients; drop those of the others."""
        if self.pending is None:
            return
        (client_K, rows), self.pending = self.pending, None
        if not torch.equal(client_K, client_R):
            used_K = torch.isin(client_K, client_R)
            client_K, rows = client_K[used_K], {n: v[used_K.to(v.device)] for n, v in rows.items()}
        if rows:
            self.store.scatter(client_K, rows)

    def state(
        self,
        client_C: Tensor,
        states: Tensors,
        outbox: Outbox,
        wanted: Callable[[str], bool] = lambda name: True,
    ) -> ClientState:
        """The rows of these clients after delivery of their messages. New clients start from the average of personal
        layers if it is among the states."""
        rows = self.store.gather(client_C, wanted) if self.store.initial else {}
        state = state_from(rows, len(client_C), self.place.device)
        if self.algorithm.newcomers == "average":
            state = state.welcome(lambda: ~self.store.knows(client_C), states)
        return state.notified(client_C, outbox, self.algorithm.terms) if outbox.messages else state

    def _calibrated(
        self, client_C: Tensor, start: Callable[[Tensor], Tensor], states: Tensors, t: int
    ) -> tuple[Tensor, Tensors]:
        """The places of new clients, and BatchNorm statistics calibrated on their data.

        `start` gives the shared parameters that some clients start from.
        """
        place_I = (~self.store.knows(client_C)).nonzero().squeeze(1)
        client_I, layout, place = client_C[place_I], self.model.layout, self.place
        own_Q = place.put(self.model.flat_P[layout.shared :])
        first = place.put_all({name: self.model.states[name] for name in layout.personal_states})
        with stage("calibration"):
            calibration = Calibration(
                client_I=client_I,
                samples=self._samples(client_I, max(t, 0)),
                start=lambda i: torch.cat([start(client_I[i : i + 1]).reshape(-1), own_Q]),
                states={name: states[name] for name in layout.shared_states} | first,
                batch_size=self.algorithm.local.batch_size,
                seed=self.seed,
            )
            return place_I, calibration.run(self.trainer.workers, layout.personal_states) if len(place_I) else {}

    def _samples(self, client_R: Tensor, t: int) -> Samples:
        samples = self.federation.train(client_R, t)
        return replace(samples, x=samples.x.to(self.place.dtype)) if samples.x.is_floating_point() else samples

    # -- leaving

    def depart(self, client_I: Tensor, outbox: Outbox) -> Departure:
        """What clients that leave send to the terms; a client without rows sends nothing."""
        client_H = client_I[self.store.knows(client_I)]
        state = self.state(client_H, {}, Outbox(), lambda name: name.startswith("term/"))
        return departure_of(client_H, state, outbox, self.algorithm)

    def forget(self, client_I: Tensor) -> None:
        for client in client_I.tolist():
            self.store.forget(client)

    # -- measuring

    def measure(self, asked: Measure) -> Measured:
        """Measure the global model, if the server has all of it, and clients' own models on their own test data."""
        central = central_model(self.model.layout, asked.shared_P, asked.states)
        values: dict[str, dict[str, float]] = {}
        for name, members in asked.central.items():
            test = self.federation.central_test(members) if central is not None else None
            if central is not None and test is not None and len(test[0]):
                values[name] = measure(self.trainer.workers, self.task, *central, *test)
        if not (asked.common or asked.own):
            return Measured(values)
        samples, workers = self.federation.test(asked.client_C, asked.t), self.trainer.workers
        common = measure_clients(workers, self.task, *central, samples) if asked.common and central is not None else {}
        if not asked.own:
            own: Tensors = {}
        elif self.algorithm.makes_own:
            own = measure_own(workers, self.task, self.own_models(asked), samples)
        else:  # all clients have the same model
            own = measure_clients(workers, self.task, *self.model.whole(asked.shared_P, asked.states), samples)
        return Measured(values, common, own, self._noisy(asked.client_C))

    def _noisy(self, client_C: Tensor) -> Tensor | None:
        """Which clients have noisy training samples; a device has data of one client only, whatever its number."""
        noisy_N: Tensor | None = getattr(self.federation, "noisy", None)
        return None if noisy_N is None else noisy_N[client_C if len(noisy_N) > 1 else torch.zeros_like(client_C)]

    def own_models(self, asked: Measure) -> Models:
        """Clients' models as they would start the next round: shared and personal parameters."""
        layout, terms = self.model.layout, [term for term in self.algorithm.terms if isinstance(term, PersonalModel)]
        sent = states_to_send(asked.states, self.algorithm.newcomers)
        wanted = ("personal", "state/", *(f"term/{term.name}/" for term in terms))
        new_I, calibrated = asked.client_C[:0], Tensors()
        if self.algorithm.newcomers == "calibrated":
            new_I, calibrated = self._calibrated(asked.client_C, asked.start_of, asked.states, asked.t)

        def models(place_c: Tensor) -> tuple[Tensor, Tensors]:
            client_c = asked.client_C[place_c]
            state = self.state(client_c, sent, asked.outbox.among(client_c), lambda name: name.startswith(wanted))
            here_c = torch.isin(place_c.cpu(), new_I)
            if bool(here_c.any()):
                at_i = torch.searchsorted(new_I, place_c.cpu()[here_c])
                statistics = {name: value[at_i.to(value.device)] for name, value in calibrated.items()}
                state = state.with_statistics(here_c.nonzero().squeeze(1), statistics)
            shared = {n: asked.states[n].expand(len(place_c), *asked.states[n].shape) for n in layout.shared_states}
            flat, held_cP = state.start(asked.start_of(client_c)), self._held(client_c)
            flat = flat if held_cP is None else flat * held_cP
            for term in terms:
                own_cP = term.own(flat[:, : layout.shared], state.term_states[term.name])
                flat = torch.cat([own_cP, flat[:, layout.shared :]], 1)
            return flat, shared | state.states

        return models

    def mean_gradient(
        self, flat_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int
    ) -> Tensor | None:
        """The mean of these clients' gradients, by shares, over all columns; None without clients."""
        if not len(client_C):
            return None
        samples = self.federation.train(client_C, t)
        return objective_gradient(self.trainer.workers, flat_P, states, samples, share_C / share_C.sum())

    def losses(self, flat_P: Tensor, states: Tensors, client_C: Tensor, t: int) -> Tensor:
        """The loss of one model on each client's training samples."""
        samples = self.federation.train(client_C, t)
        return measure_clients(self.trainer.workers, self.task, flat_P, states, samples)["loss"]

    # -- resources

    def describe(self) -> dict[str, Any]:
        """The device, and how the work is cut up."""
        algorithm, trainer, layout = self.algorithm, self.trainer, self.model.layout
        start_P = self.place.put(self.model.flat_P[: layout.shared])
        rows = 2 if algorithm.mixing.personal or layout.width > layout.shared else 1  # whether starts differ
        start_cP = start_P.expand(rows, -1)
        springs = all(as_quadratic(term, start_cP, term.server_state(start_P)) is not None for term in algorithm.terms)
        optimizer = algorithm.local.optimizer
        engine = trainer.title(optimizer, springs and (plain_sgd(optimizer) or not algorithm.terms))
        return self.place.describe() | {"engine": engine, "chunk": trainer.chunk, "threads": trainer.threads}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        """Bytes by purpose, with so many clients in a round and in all rounds together."""
        algorithm, layout, trainer = self.algorithm, self.model.layout, self.trainer
        width = 8 if self.place.dtype == torch.float64 else 4
        matrices = 1 + len(algorithm.local.optimizer.slots) + (0 if isinstance(algorithm.compression, Dense) else 1)
        beside = sum(sends(term) for term in algorithm.terms) * layout.shared
        some_C = torch.arange(min(self.federation.clients, LOOKED_AT))
        most_C = self.federation.examples(some_C).cpu().sort(descending=True).values[:cohort]
        alone = self.network.has_batch_statistics()
        return {
            "cohort": (int(matrices * layout.width + beside) * width + self.store.row_bytes) * cohort,
            "model": (COPIES + trainer.threads) * layout.width * width,
            "base": frozen_bytes(self.model.module, self.network.module),
            "training": trainer.step_bytes(cohort, algorithm.local.optimizer),
            "batches": order_bytes(most_C, algorithm.local, alone, trainer.threads),
            "client state": self.store.row_bytes * ever,
            "data": data_bytes(self.federation),
        }

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        return self.store.save(folder, mark, files)

    def load(self, folder: Path, files: list[str]) -> None:
        self.store.load(folder, files)

    def close(self) -> None:
        """There is nothing to release."""


def departure_of(client_H: Tensor, state: ClientState, outbox: Outbox, algorithm: Algorithm) -> Departure:
    """What clients send to the terms when they leave, from their rows and undelivered messages.

    A pure function: a real device sends only its rows, and the server, which has the messages, computes the rest.
    """
    terms, mine = algorithm.terms, state.notified(client_H, outbox.among(client_H), algorithm.terms).term_states
    return Departure(
        client_H,
        to_forget={t.name: t.on_leave(mine.get(t.name, {})) for t in terms if isinstance(t, Departures)},
        to_remember={term.name: mine.get(term.name, {}) for term in terms if remembers(term)},
    )


def _first_with_data(federation: Federation) -> Tensor:
    """A client that holds samples [1], to measure the model with."""
    for first in range(0, federation.clients, 1024):
        some = torch.arange(first, min(first + 1024, federation.clients))
        held = (federation.examples(some).cpu() > 0).nonzero()
        if len(held):
            return first + held[0]
    raise UserError("no client holds any training sample: look at world.data")


def data_bytes(federation: Federation) -> int:
    """Bytes of the samples in memory and of the lists of their owners; shared memory counts once."""
    rows = [getattr(getattr(federation, name, None), "row_R", None) for name in ("train_rows", "test_rows")]
    named = [getattr(federation, name, None) for name in ("x", "y", "test_x", "test_y")]
    central = getattr(federation, "central", None)
    values = [*named, *rows, *(central if isinstance(central, tuple) else ())]
    held = [part for value in values if isinstance(value, Tensor | Inputs) for part in tensors_of(value)]
    storages = [part.untyped_storage() for part in held]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
