"""`turnout run --processes N`, and `torchrun ... -m turnout run`: one run in several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from turnout.errors import UserError
from turnout.running.plan import PlannedRun, RunPlan
from turnout.runtimes.keeping import KEPT
from turnout.runtimes.processes import GROUP, follow_torchrun, opened
from turnout.runtimes.ranks import Ranks, under_torchrun
from turnout.settings import InProcess, Processes


def follows() -> bool:
    """Whether torchrun runs this command in several processes and this is not the first: that one has the plan."""
    return under_torchrun() and os.environ["RANK"] != "0"


def follow() -> int:
    """Work for the first process until it has ended; the exit code."""
    return follow_torchrun()


def with_processes(plan: RunPlan, processes: int | None, jobs: int | None) -> RunPlan:
    """The plan with so many processes for each run; torchrun has said how many where it has started them."""
    started = int(os.environ["WORLD_SIZE"]) if under_torchrun() else None
    if started is not None and jobs is not None and jobs > 1:
        raise UserError(f"--jobs {jobs} under torchrun: its processes work on one run at a time; leave --jobs out")
    if started is not None and processes not in (None, started):
        raise UserError(f"--processes {processes}, and torchrun has started {started}: leave --processes out")
    number = started if processes is None else processes
    if number is None:
        return plan
    if number < 1:
        raise UserError(f"--processes {number}: give at least 1")
    return replace(plan, runs=[_in_processes(run, number) for run in plan.runs])


def _in_processes(run: PlannedRun, number: int) -> PlannedRun:
    runtime = run.experiment.runtime
    if not isinstance(runtime, InProcess | Processes):
        raise UserError(f"--processes {number} beside runtime.kind = {runtime.kind!r}: say one of them")
    wanted = Processes(number, runtime.compute)
    return replace(run, experiment=run.experiment.but(runtime=wanted))


@contextmanager
def joined() -> Iterator[None]:
    """Under torchrun the other processes are joined from the beginning, so that they hear when all is over."""
    with KEPT.held():
        if under_torchrun():
            KEPT.started(GROUP, lambda: opened(int(os.environ["WORLD_SIZE"])), Ranks.end)
        yield
