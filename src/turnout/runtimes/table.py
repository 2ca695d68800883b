"""Which runtime runs under which settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from turnout.errors import UserError
from turnout.exchange import Runtime
from turnout.runtimes.inprocess import InProcessRuntime
from turnout.runtimes.parted import PartedRuntime, Worker, Workers, for_workers
from turnout.runtimes.processes import ProcessWorkers, divided
from turnout.runtimes.ray import RayWorkers
from turnout.runtimes.setup import Factory, Setup
from turnout.settings import InProcess, Processes, Ray


def workers_of(settings: Processes | Ray, kind: type, setup: Callable[[], Any]) -> Workers:
    """The workers that settings name, each `kind(setup(), compute)`."""
    if isinstance(settings, Processes):
        return ProcessWorkers(settings, kind, setup)
    return RayWorkers(settings, kind, setup)


def in_parts(setup: Setup) -> PartedRuntime:
    """A runtime that deals parts of each cohort out."""
    settings = setup.experiment.runtime
    if isinstance(settings, Processes):
        settings = divided(settings)
        setup = replace(setup, experiment=setup.experiment.but(runtime=settings))
    assert isinstance(settings, Processes | Ray)
    return PartedRuntime(setup, workers_of(settings, Worker, lambda: for_workers(setup)))


RUNTIMES: dict[type, Factory] = {InProcess: InProcessRuntime, Processes: in_parts, Ray: in_parts}


def open_runtime(settings: Any, setup: Setup) -> Runtime:
    """The runtime that settings name: one of the table, or what the `open(setup)` of one's own settings makes."""
    if type(settings) in RUNTIMES:
        return RUNTIMES[type(settings)](setup)
    if hasattr(settings, "open"):
        runtime: Runtime = settings.open(setup)
        return runtime
    known = ", ".join(f"turnout.{kind.__name__}()" for kind in RUNTIMES)
    raise UserError(f"runtime {settings!r} is not known here: use {known}, or settings with a function open(setup)")
