"""Actors on a Ray cluster that do parts of a cohort: who is at hand, who has died, who does it instead.

They remember nothing (parted.py), so a part whose actor has died is given to another one, and a new one is started
beside the work that goes on. The module `ray` itself is handed in by ray.py.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from turnout.errors import UserError
from turnout.machine.optional import optional
from turnout.runtimes.wire import as_arrays, as_tensors
from turnout.settings import InProcess
from turnout.types import State

START_SECONDS = 120.0  # how long to wait for workers
TRIES = 4  # a part during which so many workers have died is the reason, not the machines


class Run(NamedTuple):
    """What workers are made from: what they are, where in the object store their setup is, and how they compute."""

    name: str
    kind: type
    setup: list[Any]  # the one reference in it is looked up by a worker once, not with every part
    compute: InProcess


class RankGroup:
    """The actors on a cluster: those at hand, and those that are starting. They serve one run after another."""

    def __init__(self, ray: Any, size: int, cpus: int, gpus: float):
        self.ray = ray
        needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._actor = ray.remote(Hand).options(max_restarts=0, scheduling_strategy="SPREAD", **needs)
        self._hired: list[Any] = []
        self._idle: list[Any] = []
        self._starting: dict[Any, tuple[Any, bool]] = {}  # a sign of life -> its actor, and whether it has lived before
        self._busy: dict[Any, tuple[Any, int, int]] = {}  # an answer -> its actor, the part, how often that was tried
        for _ in range(size):
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
                    raise UserError(f"no worker can start on the Ray cluster: {short(error)}") from error
        if not self._idle and not done and seconds:
            raise UserError(
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
                raise UserError(f"{tries} workers have died over one part of a round: {short(error)}") from error
            return None

    def end(self) -> None:
        for actor in [*self._idle, *(actor for actor, *_ in (*self._starting.values(), *self._busy.values()))]:
            self.ray.kill(actor)
        self._idle, self._starting, self._busy = [], {}, {}


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


def _told(error: Any) -> Exception:
    """What went wrong in a worker, as it would have been said here."""
    cause = error.cause
    return UserError(str(cause)) if isinstance(cause, UserError) else error


def short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
