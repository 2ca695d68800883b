"""Parts of a cohort on the workers of a Ray cluster. Only this module loads Ray.

Workers (parted.py) are the actors of rank_group.py. Data and model are put into the object store once a run and read
by every worker once; what a round sends to all is put there once a round. Tensors travel as numpy arrays, which the
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from turnout.errors import UserError
from turnout.machine.optional import optional
from turnout.machine.threads import cores
from turnout.runtimes.keeping import KEPT
from turnout.runtimes.rank_group import RankGroup, Run, short
from turnout.settings import InProcess
from turnout.settings import Ray as Settings
from turnout.types import State

NO_CLUSTER = "runtime.address = {!r}: no Ray cluster answers there ({}); start one with `ray start --head`"


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
        self._ours = False

    @property
    def crew(self) -> RankGroup:
        crew: RankGroup = KEPT.started(self._name, self._start, self._end)
        if self._run is None:
            self._run = Run(secrets.token_hex(8), self._kind, [self.ray.put(self._setup())], self._compute())
        return crew

    def _start(self) -> RankGroup:
        """Everybody at work, on a cluster that is joined or started."""
        settings = self.settings
        self._ours = connect(self.ray, settings)
        try:
            return RankGroup(self.ray, settings.workers or room(self.ray, settings), settings.cpus, settings.gpus)
        except BaseException:
            self._leave()
            raise

    def _end(self, crew: RankGroup) -> None:
        crew.end()
        self._leave()

    def _leave(self) -> None:
        if self._ours:
            with _quietly():
                self.ray.shutdown()

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
        raise UserError(NO_CLUSTER.format(settings.address, short(error))) from error
    return True


def _check_answers(address: str | None) -> None:
    """Somebody listens at host:port: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise UserError(NO_CLUSTER.format(address, error.strerror or error)) from error


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
