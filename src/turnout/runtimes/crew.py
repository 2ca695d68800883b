"""Workers in other processes, for torch.distributed and Ray alike: start them, deal out parts, repeat, end.

`RemoteWorkers` deals out the parts of a cohort and collects the answers; a `WorkerGroup` carries trees to its workers
and back (processes.py, ray.py); `LazyWorker` is a worker in its own process. Workers keep no state between parts
(parted.py), so a part whose worker has died can be given to another. Groups may serve several runs (`WORKERS`).
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnout.errors import UserError
from turnout.settings import InProcess
from turnout.types import State

TRIES = 4  # a part that so many workers have died over is the cause, not the machines


class SharedGroups:
    """Worker groups by name, which several runs can use: processes, actors on a Ray cluster.

    A runtime gets a group when there is work, and releases it when its run has ended. Within `reused()` the group is
    then kept for the next run and ends with the block; otherwise it ends at once.
    """

    def __init__(self) -> None:
        self._groups: dict[str, tuple[Any, Callable[[Any], None]]] = {}
        self._blocks = 0

    def get(self, name: str, start: Callable[[], Any], end: Callable[[Any], None]) -> Any:
        """The group of this name, started by `start()` if there is none; `end(group)` ends it."""
        if name not in self._groups:
            self._groups[name] = start(), end
        return self._groups[name][0]

    def release(self, name: str) -> None:
        """A run that used the group has ended."""
        if not self._blocks:
            self.end(name)

    def end(self, name: str) -> None:
        """End the group now, also within `reused()`."""
        if name in self._groups:
            group, end = self._groups.pop(name)
            end(group)

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Groups that are started within this block serve all runs in it."""
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                for name in reversed(list(self._groups)):
                    self.end(name)


WORKERS = SharedGroups()


class WorkerLost(Exception):
    """A worker, or its machine, has died."""


class WorkerGroup(Protocol):
    """Worker processes and the connection to them.

    settled  whether no worker has a part; otherwise `end` does not wait for them
    """

    settled: bool

    def ready(self) -> int:
        """Number of parts that the next cohort is cut into."""

    def open(self, kind: type, setup: Any, compute: InProcess) -> None:
        """Begin a run whose workers are `kind(setup, compute)`."""

    def share(self, what: str, common: State, parts: int) -> None:
        """Send what all parts of the next task have in common; `what` is the method that workers call."""

    def is_free(self) -> bool:
        """Whether a worker can take a part; waits for one if no worker is busy."""

    def give(self, i: int, part: State) -> None:
        """Send part i to a free worker."""

    def collect(self) -> tuple[int, State | WorkerLost]:
        """The number of the next part that is done, and its answer; or `WorkerLost` if its worker has died."""

    def end(self) -> None: ...


@dataclass
class RemoteWorkers:
    """Workers in other processes for one run, each `kind(setup(), compute)`; they are started at the first task.

    name     name of the group, under which several runs share it
    start    starts the group
    kind     class of a worker
    setup    makes what a worker is made from
    compute  how a worker computes
    about    entries for the description of a run
    here     number of parts (0 or 1) that this process does itself
    copies   number of copies of the data in the memory of this machine
    """

    name: str
    start: Callable[[], WorkerGroup]
    kind: type
    setup: Callable[[], Any]
    compute: InProcess
    about: dict[str, Any]
    here: int = 0
    copies: int = 1
    is_open: bool = field(default=False, init=False)

    @property
    def parts(self) -> int:
        return self.group.ready()

    @property
    def group(self) -> WorkerGroup:
        """The group, ready for this run."""
        group: WorkerGroup = WORKERS.get(self.name, self.start, lambda group: group.end())
        if not self.is_open:
            self.is_open = True
            group.open(self.kind, self.setup(), self.compute)
        return group

    def each(self, what: str, common: State, parts: Sequence[State], meanwhile: Callable[[], None]) -> list[State]:
        """Call the workers' method `what` on each part, and return the answers. `meanwhile()` is called once, while
        they work. A part whose worker has died is given to another worker."""
        if not parts:
            meanwhile()
            return []
        answers: dict[int, State] = {}
        waiting, tries = deque(range(len(parts))), [0] * len(parts)

        def give_out() -> None:
            while waiting and group.is_free():
                tries[waiting[0]] += 1
                group.give(waiting[0], parts[waiting.popleft()])

        try:
            group = self.group
            group.settled = False
            group.share(what, common, len(parts))
            give_out()
            meanwhile()
            while len(answers) < len(parts):
                i, answer = group.collect()
                if not isinstance(answer, WorkerLost):
                    answers[i] = answer
                    if "mistake" in answer:
                        raise UserError(answer["mistake"])
                    if "error" in answer:
                        raise RuntimeError(f"in another process: {answer['error']}")
                elif tries[i] == TRIES:
                    raise UserError(f"{TRIES} workers have died over one part of a round: {answer}")
                else:
                    waiting.append(i)
                give_out()
            group.settled = True
        except BaseException as error:  # the workers are still busy
            self.is_open = False
            WORKERS.end(self.name)
            if isinstance(error, WorkerLost):
                advice = "what is on the disk is complete: resume with --resume (Python: resume=True)"
                raise UserError(f"{error}; {advice}") from None
            raise
        return [answers[i] for i in range(len(parts))]

    def close(self) -> None:
        """The run has ended."""
        if self.is_open:
            self.is_open = False
            WORKERS.release(self.name)


class LazyWorker:
    """The worker of a run in its own process, made by `make()` when it receives its first part."""

    def __init__(self, make: Callable[[], Any]):
        self._make: Callable[[], Any] | None = make
        self._worker: Any = None

    def answer(self, what: str, common: State, part: State) -> State:
        try:
            if self._make is not None:
                self._worker, self._make = self._make(), None
            answer: State = getattr(self._worker, what)(common, part)
            return answer
        except UserError as mistake:
            return {"mistake": str(mistake)}
        except Exception:
            return {"error": traceback.format_exc()}
