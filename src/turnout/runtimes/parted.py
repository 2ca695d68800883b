"""Parts of a cohort for workers elsewhere: what the server's side and a worker's side have in common.

The server's process holds the rows that clients keep, draws the turnout, and deals out the work. The rows of clients
that work travel with their part, and return with their replies. A worker has the data and a trainer, and keeps no
state between parts: any worker can do any part, also twice. What travels is a tree of tensors and plain values
(wire.py), carried by ray.py and processes.py.

Shape letters: R participants, K participants that have rows, C clients that are measured.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from turnout.engine.trainers import place_of
from turnout.errors import UserError
from turnout.exchange import Assignment, Download, Measure, Measured, Runtime
from turnout.parts.terms.base import PersonalModel
from turnout.runtimes import wire
from turnout.runtimes.client_pool import ClientPool
from turnout.runtimes.crew import RemoteWorkers
from turnout.runtimes.inprocess import InProcessRuntime
from turnout.runtimes.processes import divided, process_workers
from turnout.runtimes.ray import ray_workers
from turnout.runtimes.setup import Model, Setup
from turnout.settings import InProcess, Processes, Ray
from turnout.types import Replies, State, Tensors, flatten

TOGETHER = ("t", "lr", "shared", "states", "term_states")  # of a download: the same for all parts


def dealt(clients: int, workers: int) -> list[Tensor]:
    """The places of clients in the list, dealt out to workers one by one, so that long and short work is spread evenly.

    >>> dealt(5, 2)
    [tensor([0, 2, 4]), tensor([1, 3])]
    """
    return [torch.arange(i, clients, workers) for i in range(min(clients, workers))]


class NoWorkers:
    """Stands for workers where this process does all the work itself."""

    here = parts = copies = 1
    about: ClassVar[dict[str, Any]] = {}

    def each(self, what: str, common: State, parts: Sequence[State], meanwhile: Callable[[], None]) -> list[State]:
        meanwhile()
        return []

    def close(self) -> None:
        """There is nothing to release."""


class PartedPool(ClientPool):
    """The server's side: a pool that gives parts of a cohort to workers.

    beyond  seconds that the last cohort took beyond the training of its slowest part
    """

    beyond: float = 0.0

    def __init__(self, setup: Setup, workers: RemoteWorkers):
        super().__init__(setup)
        self.workers = workers

    def work(self, download: Download, asked: Assignment, dense: bool = False) -> tuple[Replies, Tensors]:
        places, start = dealt(len(asked.client_R), self.workers.parts), time.perf_counter()
        common = {name: value for name, value in wire.download_tree(download).items() if name in TOGETHER}
        parts: list[State] = []
        for place in places[self.workers.here :]:
            part = asked.take(place)
            tree = wire.download_tree(download.among(part.client_R.sort().values))
            own = {name: value for name, value in tree.items() if name not in TOGETHER}
            rest = {"asked": wire.assignment_tree(part), "dense": dense}
            parts.append({"own": own, **rest, **self._kept(part.client_R)})
        results: list[tuple[Replies, Tensors]] = []
        seconds: list[float] = []
        device = self.place.device

        def meanwhile() -> None:
            for place in places[: self.workers.here]:
                began = time.perf_counter()
                replies, rows = super(PartedPool, self).work(download, asked.take(place), dense)
                results.append((replies.reported(), {} if dense else rows))
                seconds.append(time.perf_counter() - began)

        for answer in self.workers.each("work", common, parts, meanwhile):
            replies = wire.replies_of(wire.placed(answer["replies"], device, ("tensors", "states", "uploads", "hints")))
            results.append((replies, flatten(answer["rows"])[0]))
            seconds.append(answer["seconds"])
        order = torch.cat(places).argsort()
        replies = Replies.join([replies for replies, _ in results]).take(order)
        self.beyond = time.perf_counter() - start - max(seconds)
        return replies, _joined([rows for _, rows in results], order)

    def _kept(self, client_R: Tensor, names: tuple[str, ...] = ("",)) -> State:
        """Those of these clients that have rows, and the rows."""
        client_K = client_R[self.store.knows(client_R)]
        return {"client": client_K, "rows": self.store.gather(client_K, lambda name: name.startswith(names))}

    def measure(self, asked: Measure) -> Measured:
        """Measure the global model here, and clients' own models where they would work."""
        if not (asked.common or asked.own):
            return super().measure(asked)
        central, alone = replace(asked, common=False, own=False), replace(asked, central={})
        common = {"shared": asked.shared_P, "states": asked.states}
        places = dealt(len(asked.client_C), self.workers.parts)
        terms = [f"term/{term.name}/" for term in self.algorithm.terms if isinstance(term, PersonalModel)]
        parts: list[State] = []
        for place in places[self.workers.here :]:
            client_c = asked.client_C[place]
            own = {n: v for n, v in wire.measure_tree(alone, client_c).items() if n not in common}
            with_rows_c = client_c if asked.own and self.algorithm.makes_own else client_c[:0]
            parts.append({"own": own, **self._kept(with_rows_c, ("personal", "state/", *terms))})
        one, measured = list[Measured](), list[Measured]()

        def meanwhile() -> None:
            one.append(super(PartedPool, self).measure(central))
            for place in places[: self.workers.here]:
                measured.append(super(PartedPool, self).measure(replace(alone, client_C=asked.client_C[place])))

        answers = self.workers.each("measure", common, parts, meanwhile)
        measured += [wire.measured_of(answer) for answer in answers]
        order = torch.cat(places).argsort()
        values, personal = (_joined([getattr(part, name) for part in measured], order) for name in ("common", "own"))
        noisy = [part.noisy_C for part in measured if part.noisy_C is not None]
        return Measured(one[0].central, values, personal, torch.cat(noisy)[order] if noisy else None)

    def close(self) -> None:
        self.workers.close()

    def describe(self) -> dict[str, Any]:
        return super().describe() | self.workers.about

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        needed = super().memory(cohort, ever)
        return needed | {"data": needed["data"] * self.workers.copies}


class Worker:
    """A worker's side: a `ClientPool` that receives its clients' rows with each part."""

    def __init__(self, setup: Setup, compute: InProcess):
        place = place_of(compute)
        self.clients = ClientPool(replace(setup, experiment=setup.experiment.but(runtime=compute), place=place))

    def work(self, common: State, part: State) -> State:
        """The replies of the clients of a part, and the rows they would keep."""
        asked, device = wire.assignment_of(part["asked"]), self.clients.place.device
        tree = wire.placed(common | part["own"], device, ("shared", "states", "term_states", "start"))
        download = wire.download_of(tree)
        self._store(part)
        start = time.perf_counter()
        replies, rows = self.clients.work(download, asked, part["dense"])
        kept = {} if part["dense"] else rows
        return {"replies": wire.replies_tree(replies.reported()), "rows": kept, "seconds": time.perf_counter() - start}

    def measure(self, common: State, part: State) -> State:
        """Measure the models of some clients, one by one."""
        tree = wire.placed(common | part["own"], self.clients.place.device, ("shared", "states", "start"))
        self._store(part)
        return wire.measured_tree(self.clients.measure(wire.measure_of(tree)))

    def _store(self, part: State) -> None:
        """Store the rows of a part, and no others."""
        self.clients.store.clear()
        self.clients.store.scatter(part["client"], flatten(part["rows"])[0])


def _joined(parts: Sequence[Tensors], order: Tensor) -> Tensors:
    """Rows of several parts, in the order of the cohort; parts may be on different devices."""
    return {
        name: torch.cat([part[name].to(first.device) for part in parts])[order.to(first.device)]
        for name, first in parts[0].items()
    }


def workers_of(settings: Processes | Ray, kind: type, setup: Callable[[], Any]) -> RemoteWorkers:
    """The workers that settings name, each `kind(setup(), compute)`."""
    if isinstance(settings, Processes):
        return process_workers(settings, kind, setup)
    return ray_workers(settings, kind, setup)


def in_parts(setup: Setup) -> InProcessRuntime:
    """A runtime that gives parts of each cohort to workers."""
    settings = setup.experiment.runtime
    if isinstance(settings, Processes):
        settings = divided(settings)
        setup = replace(setup, experiment=setup.experiment.but(runtime=settings))
    assert isinstance(settings, Processes | Ray)

    def for_workers() -> Setup:  # on the CPU, where any process can read it
        model, cpu = setup.model, torch.device("cpu")
        module, states = copy.deepcopy(model.module).to(cpu), wire.placed(model.states, cpu)
        return replace(setup, model=Model(module, model.layout, model.flat_P.cpu(), states))

    return InProcessRuntime(setup, PartedPool(setup, workers_of(settings, Worker, for_workers)))


RUNTIMES: dict[type, Callable[[Setup], Runtime]] = {InProcess: InProcessRuntime, Processes: in_parts, Ray: in_parts}


def open_runtime(settings: Any, setup: Setup) -> Runtime:
    """The runtime that settings name: one of the table, or the result of `open(setup)` of a user's own settings."""
    if type(settings) in RUNTIMES:
        return RUNTIMES[type(settings)](setup)
    if hasattr(settings, "open"):
        runtime: Runtime = settings.open(setup)
        return runtime
    known = ", ".join(f"turnout.{kind.__name__}()" for kind in RUNTIMES)
    raise UserError(f"runtime {settings!r} is not known here: use {known}, or settings with a function open(setup)")
