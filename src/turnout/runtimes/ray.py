"""Parts of a cohort on the workers of a Ray cluster. Only this module knows Ray.

Workers (parted.py) are actors that remember nothing, so a part whose worker has died is given to another one, and a new
worker is started beside the work that goes on. Data and model are put into the object store once a run and read by
every worker once; what a round sends to all is put there once a round. Tensors travel as numpy arrays, which the
store shares between the processes of a machine.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from turnout.errors import Mistake
from turnout.machine.optional import optional
from turnout.machine.threads import cores
from turnout.runtimes.keeping import KEPT
from turnout.runtimes.settings import InProcess
from turnout.runtimes.settings import Ray as Settings
from turnout.runtimes.wire import as_arrays, as_tensors
from turnout.types import State

START_SECONDS = 120.0  # how long to wait for workers
NO_CLUSTER = "runtime.address = {!r}: no Ray cluster answers there ({}); start one with `ray start --head`"
TRIES = 4  # a part during which so many workers have died is the reason, not the machines


class RayWorkers:
    """Workers on a cluster: started when there is work, let go when the run has ended.

    A worker is `kind(setup(), compute)`.
    """

    here = 0
    copies = 1

    def __init__(self, settings: Settings, kind: type, setup: Callable[[], Any]):
        self.ray = optional("ray", "runtime.kind = 'ray'", "ray")
        self.settings, self._name = settings, f"ray {replace(settings, compute=InProcess())}"
        self._kind, self._setup = kind, setup
        self._run: Run | None = None

    @property
    def crew(self) -> Crew:
        crew: Crew = KEPT.started(self._name, lambda: Crew(self.ray, self.settings), Crew.end)
        if self._run is None:
            self._run = Run(secrets.token_hex(8), self._kind, [self.ray.put(self._setup())], self._compute())
        return crew

    def _compute(self) -> InProcess:
        """How workers compute; on a GPU only where they are given some."""
        compute, settings = self.settings.compute, self.settings
        device = "cpu" if compute.device == "auto" and not settings.gpus else compute.device
        return replace(compute, threads=compute.threads or settings.cpus, device=device)

    @property
    def parts(self) -> int:
        return self.crew.ready()

    def each(self, what: str, common: State, parts: Sequence[State], meanwhile: Callable[[], None]) -> list[State]:
        crew = self.crew
        assert self._run is not None
        return crew.each((self._run, what), common, parts, meanwhile)

    def close(self) -> None:
        if self._run is not None:
            self._run = None
            KEPT.let_go(self._name)

    def describe(self) -> dict[str, Any]:
        return {"workers": self.settings.workers or "all"}


class Run(NamedTuple):
    """What workers are made from: what they are, where in the object store their setup is, and how they compute."""

    name: str
    kind: type
    setup: list[Any]  # the one reference in it is looked up by a worker once, not with every part
    compute: InProcess


class Crew:
    """The actors on a cluster: those at hand, and those that are starting. They serve one run after another."""

    def __init__(self, ray: Any, settings: Settings):
        self.ray, self._ours = ray, connect(ray, settings)
        needs = {"num_cpus": settings.cpus, "num_gpus": settings.gpus}
        self._actor = ray.remote(Hand).options(max_restarts=0, scheduling_strategy="SPREAD", **needs)
        self._hired: list[Any] = []
        self._idle: list[Any] = []
        self._starting: dict[Any, tuple[Any, bool]] = {}  # a sign of life -> its actor, and whether it has lived before
        self._busy: dict[Any, tuple[Any, int, int]] = {}  # an answer -> its actor, the part, how often that was tried
        for _ in range(settings.workers or room(ray, settings)):
            self._hire()
        try:
            self._welcome(START_SECONDS, len(self._starting))
        except BaseException:
            self.end()
            raise

    def _hire(self) -> None:
        actor = self._actor.remote()
        self._hired.append(actor)
        self._starting[actor.pid.remote()] = actor, False

    def _welcome(self, seconds: float, wanted: int) -> None:
        """Those that have started are at hand; one that cannot start says why."""
        if not self._starting:
            return
        done, _ = self.ray.wait(list(self._starting), num_returns=min(wanted, len(self._starting)), timeout=seconds)
        for sign in done:
            actor, lived = self._starting.pop(sign)
            try:
                self.ray.get(sign)
                self._idle.append(actor)
            except self.ray.exceptions.RayError as error:
                if lived:
                    self._hire()
                elif not self._idle and not self._starting:
                    raise Mistake(f"no worker can start on the Ray cluster: {_short(error)}") from error
        if not self._idle and not done and seconds:
            raise Mistake(
                f"no worker has started on the Ray cluster in {seconds:g} seconds: it may have no room for one (see "
                "`ray status`); lower runtime.cpus or runtime.gpus"
            )

    def ready(self) -> int:
        """How many are at hand: at least one."""
        self._welcome(0, len(self._starting))
        while not self._idle:
            self._welcome(START_SECONDS, 1)
        return len(self._idle)

    def each(
        self, what: tuple[Run, str], common: State, parts: Sequence[State], meanwhile: Callable[[], None]
    ) -> list[State]:
        """Every part is done by somebody; one whose worker has died is done again by another."""
        shared, answers = self.ray.put(as_arrays(common)), dict[int, State]()
        waiting = deque((i, 1) for i in range(len(parts)))
        self._idle.sort(key=self._hired.index)  # the same part of the next question goes to the same worker

        def give_out() -> None:
            while waiting and (self._idle or not self._busy) and self.ready():
                (i, tries), actor = waiting.popleft(), self._idle.pop(0)
                self._busy[actor.do.remote(*what, shared, as_arrays(parts[i]))] = actor, i, tries

        try:
            give_out()
            meanwhile()
            while len(answers) < len(parts):
                (answer,), _ = self.ray.wait(list(self._busy), num_returns=1)
                actor, i, tries = self._busy.pop(answer)
                found = self._found(answer, tries)
                if found is None:
                    self._lose(actor)
                    waiting.append((i, tries + 1))
                else:
                    self._idle.append(actor)
                    answers[i] = found
                give_out()
        except BaseException:  # the others are in the middle of something
            for actor, _, _ in self._busy.values():
                self._lose(actor)
            self._busy.clear()
            raise
        return [answers[i] for i in range(len(parts))]

    def _lose(self, actor: Any) -> None:
        """Another takes its place; and those at hand, which may have died with it, must show that they live."""
        self.ray.kill(actor)
        self._hired.remove(actor)
        self._hire()
        self._starting |= {other.pid.remote(): (other, True) for other in self._idle}
        self._idle = []

    def _found(self, answer: Any, tries: int) -> State | None:
        """The answer of a worker; None where it has died, or its machine has."""
        try:
            found: State = as_tensors(self.ray.get(answer))
            return found
        except self.ray.exceptions.RayTaskError as error:
            raise _told(error) from error
        except self.ray.exceptions.RayError as error:
            if tries == TRIES:
                raise Mistake(f"{tries} workers have died over one part of a round: {_short(error)}") from error
            return None

    def end(self) -> None:
        for actor in [*self._idle, *(actor for actor, *_ in (*self._starting.values(), *self._busy.values()))]:
            self.ray.kill(actor)
        self._idle, self._starting, self._busy = [], {}, {}
        if self._ours:
            with _quietly():
                self.ray.shutdown()


class Hand:
    """A worker as an actor: arrays come and go. It is made for a run when the first part of that run comes."""

    def __init__(self) -> None:
        self.run = ""
        self.worker: Any = None

    def pid(self) -> int:
        return os.getpid()

    def do(self, run: Run, what: str, common: State, part: State) -> State:
        if run.name != self.run:
            ray = optional("ray", "a worker", "ray")
            self.run, self.worker = run.name, run.kind(ray.get(run.setup[0]), run.compute)
        answer: State = getattr(self.worker, what)(as_tensors(common), as_tensors(part))
        return as_arrays(answer)


def connect(ray: Any, settings: Settings) -> bool:
    """Join a cluster, or start Ray on this machine; whether it is ours to end."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    _check_answers(settings.address)
    wanted = (settings.workers or 1) * settings.cpus
    here = {} if settings.address else {"include_dashboard": False, "num_cpus": max(wanted, cores())}
    try:
        with _quietly():
            ray.init(settings.address or "local", log_to_driver=False, logging_level="ERROR", **here)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise Mistake(NO_CLUSTER.format(settings.address, _short(error))) from error
    return True


def _check_answers(address: str | None) -> None:
    """Somebody listens at host:port: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise Mistake(NO_CLUSTER.format(address, error.strerror or error)) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Ray leaves files for the system to close, and replaces the handler of SIGTERM; ours says how to go on."""
    main, before = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
    if main:
        signal.signal(signal.SIGTERM, before)


def room(ray: Any, settings: Settings) -> int:
    """How many workers the cluster has cores and GPUs for."""
    there = ray.cluster_resources()
    by_cores = int(there.get("CPU", 0) // settings.cpus)
    by_gpus = int(there.get("GPU", 0) // settings.gpus) if settings.gpus else by_cores
    return max(1, min(by_cores, by_gpus))


def _told(error: Any) -> Exception:
    """What went wrong in a worker, as it would have been said here."""
    cause = error.cause
    return Mistake(str(cause)) if isinstance(cause, Mistake) else error


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
