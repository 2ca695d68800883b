"""Parts of a cohort on the workers of a Ray cluster. Only this module loads Ray.

Data and model are put into the object store once per run, and every worker reads them once; what a round sends to all
workers is put there once per round. Trees (wire.py) travel as numpy arrays, which the store shares between the
processes of a machine. A part whose worker has died is given to another one, and a new worker is started.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import UserError, optional
from turnout.machine.threads import cores
from turnout.runtimes.crew import LazyWorker, RemoteWorkers, WorkerLost
from turnout.runtimes.wire import read_tree, write_tree
from turnout.settings import InProcess
from turnout.settings import Ray as Settings
from turnout.types import State

NO_CLUSTER = "runtime.address = {!r}: no Ray cluster answers there ({}); start one with `ray start --head`"
START_SECONDS = 120.0  # how long to wait for workers


def ray_workers(settings: Settings, kind: type, setup: Callable[[], Any]) -> RemoteWorkers:
    """Workers on a Ray cluster."""
    compute, ray = settings.compute, optional("ray", "runtime.kind = 'ray'", "ray")
    device = "cpu" if compute.device == "auto" and not settings.gpus else compute.device
    compute = replace(compute, threads=compute.threads or settings.cpus, device=device)
    name, about = f"ray {replace(settings, compute=InProcess())}", {"workers": settings.workers or "all"}
    return RemoteWorkers(name, lambda: RayGroup(ray, settings), kind, setup, compute, about)


class RayRun(NamedTuple):
    """What the workers of a run are made from.

    name     differs between runs
    kind     class of a worker
    setup    reference to its setup, in a list: a worker looks it up once, not with every part
    compute  how it computes
    """

    name: str
    kind: type
    setup: list[Any]
    compute: InProcess


class RayGroup:
    """The actors on a cluster that was joined or started: those that are idle, at work, and starting."""

    def __init__(self, ray: Any, settings: Settings):
        self.ray, self.settled = ray, True
        self._ours = connect(ray, settings)
        needs = {"num_cpus": settings.cpus, "num_gpus": settings.gpus}
        self._actor = ray.remote(RayWorker).options(max_restarts=0, scheduling_strategy="SPREAD", **needs)
        self._actors: list[Any] = []
        self._idle: list[Any] = []
        self._starting: dict[Any, tuple[Any, bool]] = {}  # a first answer -> actor, whether it had started before
        self._busy: dict[Any, tuple[Any, int]] = {}  # an answer -> its actor, and the part
        self._run: RayRun | None = None
        self._shared: tuple[str, Any] = "", None
        try:
            for _ in range(settings.workers or room(ray, settings)):
                self._start()
            self._collect_started(START_SECONDS, len(self._starting))
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        actor = self._actor.remote()
        self._actors.append(actor)
        self._starting[actor.pid.remote()] = actor, False

    def _collect_started(self, seconds: float, wanted: int) -> None:
        """Wait for actors that start, and list them as idle; an error if none can start."""
        if not self._starting:
            return
        done, _ = self.ray.wait(list(self._starting), num_returns=min(wanted, len(self._starting)), timeout=seconds)
        for first in done:
            actor, started = self._starting.pop(first)
            try:
                self.ray.get(first)
                self._idle.append(actor)
            except self.ray.exceptions.RayError as error:
                if started:
                    self._start()
                elif not self._idle and not self._starting:
                    raise UserError(f"no worker can start on the Ray cluster: {short(error)}") from error
        if not self._idle and not done and seconds:
            raise UserError(
                f"no worker has started on the Ray cluster in {seconds:g} seconds: it may have no room for one (see "
                "`ray status`); lower runtime.cpus or runtime.gpus"
            )

    def ready(self) -> int:
        """Number of idle actors, at least one; waits for it."""
        self._collect_started(0, len(self._starting))
        while not self._idle:
            self._collect_started(START_SECONDS, 1)
        return len(self._idle)

    def open(self, kind: type, setup: Any, compute: InProcess) -> None:
        self._run = RayRun(secrets.token_hex(8), kind, [self.ray.put(setup)], compute)

    def share(self, what: str, common: State, parts: int) -> None:
        self._shared = what, self.ray.put(_arrays(common))
        self._idle.sort(key=self._actors.index)  # the same part of the next task goes to the same worker

    def is_free(self) -> bool:
        return bool((self._idle or not self._busy) and self.ready())

    def give(self, i: int, part: State) -> None:
        actor = self._idle.pop(0)
        self._busy[actor.answer.remote(self._run, *self._shared, _arrays(part))] = actor, i

    def collect(self) -> tuple[int, State | WorkerLost]:
        (answer,), _ = self.ray.wait(list(self._busy), num_returns=1)
        actor, i = self._busy.pop(answer)
        try:
            tree = _tree(self.ray.get(answer))
        except self.ray.exceptions.RayTaskError:  # the worker is alive, but could not read its part
            raise
        except self.ray.exceptions.RayError as error:
            self.ray.kill(actor)
            self._actors.remove(actor)
            self._start()
            # Idle actors may have died with it: each must answer again.
            self._starting |= {other.pid.remote(): (other, True) for other in self._idle}
            self._idle = []
            return i, WorkerLost(short(error))
        self._idle.append(actor)
        return i, tree

    def end(self) -> None:
        for actor in [*self._idle, *(actor for actor, _ in (*self._starting.values(), *self._busy.values()))]:
            self.ray.kill(actor)
        if self._ours:
            with _quietly():
                self.ray.shutdown()


class RayWorker:
    """A `LazyWorker` as an actor, which receives and returns arrays; each run has its own worker."""

    def __init__(self) -> None:
        here = str(Path.cwd())
        sys.path[:] = [*(path for path in sys.path if path != here), here]
        self.run = ""
        self.worker: LazyWorker

    def pid(self) -> int:
        return os.getpid()

    def answer(self, run: RayRun, what: str, common: list[np.ndarray], part: list[np.ndarray]) -> list[np.ndarray]:
        if run.name != self.run:
            ray = optional("ray", "a worker", "ray")
            self.run, self.worker = run.name, LazyWorker(lambda: run.kind(ray.get(run.setup[0]), run.compute))
        return _arrays(self.worker.answer(what, _tree(common), _tree(part)))


def _arrays(tree: State) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    write_tree(tree, lambda value: arrays.append(value.numpy()))
    return arrays


def _tree(arrays: list[np.ndarray]) -> State:
    rest = iter(arrays)
    return read_tree(lambda value: np.copyto(value.numpy(), next(rest)))


def short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def connect(ray: Any, settings: Settings) -> bool:
    """Join a cluster, or start Ray on this machine; returns whether this process must end it."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    host, _, port = (settings.address or "").rpartition("://")[2].rpartition(":")
    if port.isdigit():  # without an answer there, Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise UserError(NO_CLUSTER.format(settings.address, error.strerror or error)) from error
    wanted = (settings.workers or 1) * settings.cpus
    here = {} if settings.address else {"include_dashboard": False, "num_cpus": max(wanted, cores())}
    try:
        with _quietly():
            # Ray lets workers search the driver's folder first; with this they have loaded their libraries before.
            first = {"worker_process_setup_hook": "turnout.runtimes.ray.RayWorker"}
            ray.init(settings.address or "local", log_to_driver=False, logging_level="ERROR", runtime_env=first, **here)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(NO_CLUSTER.format(settings.address, short(error))) from error
    return True


@contextmanager
def _quietly() -> Iterator[None]:
    """Ignore the files that Ray leaves open, and restore our handler of SIGTERM, which tells how to resume."""
    main, before = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
    if main:
        signal.signal(signal.SIGTERM, before)


def room(ray: Any, settings: Settings) -> int:
    """Number of workers that the cluster has cores and GPUs for."""
    there = ray.cluster_resources()
    by_cores = int(there.get("CPU", 0) // settings.cpus)
    by_gpus = int(there.get("GPU", 0) // settings.gpus) if settings.gpus else by_cores
    return max(1, min(by_cores, by_gpus))
