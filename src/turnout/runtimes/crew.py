"""Workers in other processes, for torch.distributed and Ray alike: start them, deal out parts, repeat, end.

`RemoteWorkers` deals the parts of a cohort out and collects the answers; a `WorkerGroup` carries trees to its workers
and back (processes.py, ray.py); `Hand` is a worker in its own process. Workers remember nothing between parts
(parted.py), so a part whose worker has died can be given to another. Groups may serve several runs (`KEPT`).
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


class Kept:
    """What runtimes start and several runs can use: processes, a Ray cluster; by name.

    A runtime asks for it when there is work and lets go of it when its run has ended. Within `held()` it then stays
    for the next run, and ends with the block; otherwise it ends at once.
    """

    def __init__(self) -> None:
        self._things: dict[str, tuple[Any, Callable[[Any], None]]] = {}
        self._holders = 0

    def started(self, name: str, start: Callable[[], Any], end: Callable[[Any], None]) -> Any:
        """What has this name, or what `start()` makes; `end(it)` is called when no run needs it any more."""
        if name not in self._things:
            self._things[name] = start(), end
        return self._things[name][0]

    def let_go(self, name: str) -> None:
        """A run that used it has ended."""
        if not self._holders:
            self.end(name)

    def end(self, name: str) -> None:
        """End it now, also within `held()`: it is broken, or the block has ended."""
        if name in self._things:
            thing, end = self._things.pop(name)
            end(thing)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is started within this block serves all runs in it."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                for name in reversed(list(self._things)):
                    self.end(name)


KEPT = Kept()


class WorkerLost(Exception):
    """A worker, or its machine, has died."""


class WorkerGroup(Protocol):
    """Worker processes and the connection to them.

    settled  whether no worker has a part; otherwise `end` does not wait for them
    """

    settled: bool

    def ready(self) -> int:
        """Into how many parts the next cohort is cut."""

    def open(self, kind: type, setup: Any, compute: InProcess) -> None:
        """A run begins, whose workers are `kind(setup, compute)`."""

    def share(self, what: str, common: State, parts: int) -> None:
        """Send what all parts of the next question have in common."""

    def is_free(self) -> bool:
        """Whether a worker can take a part; waits for one where none has a part."""

    def give(self, i: int, part: State) -> None:
        """Send part i to a free worker."""

    def collect(self) -> tuple[int, State | WorkerLost]:
        """The next part that is done, with its answer; or that its worker has died over it."""

    def end(self) -> None: ...


@dataclass
class RemoteWorkers:
    """Workers elsewhere for one run, each `kind(setup(), compute)`: started when there is work for them.

    name     of the group, by which several runs share it
    start    starts the group
    about    what a run's description says of it
    here     how many parts (0 or 1) this process does itself
    copies   how often the data lies in the memory of this machine
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
        """The processes, ready for this run."""
        group: WorkerGroup = KEPT.started(self.name, self.start, lambda group: group.end())
        if not self.is_open:
            self.is_open = True
            group.open(self.kind, self.setup(), self.compute)
        return group

    def each(self, what: str, common: State, parts: Sequence[State], meanwhile: Callable[[], None]) -> list[State]:
        """The answers of workers to `what` (a method of theirs), one for each part; `meanwhile()` is called once, while
        they work. A part whose worker has died is given to another one."""
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
                i, found = group.collect()
                if not isinstance(found, WorkerLost):
                    answers[i] = found
                    if "mistake" in found:
                        raise UserError(found["mistake"])
                    if "error" in found:
                        raise RuntimeError(f"in another process: {found['error']}")
                elif tries[i] == TRIES:
                    raise UserError(f"{TRIES} workers have died over one part of a round: {found}")
                else:
                    waiting.append(i)
                give_out()
            group.settled = True
        except BaseException as error:  # the workers are in the middle of something
            self.is_open = False
            KEPT.end(self.name)
            if isinstance(error, WorkerLost):
                advice = "what is on the disk is complete: resume with --resume (Python: resume=True)"
                raise UserError(f"{error}; {advice}") from None
            raise
        return [answers[i] for i in range(len(parts))]

    def close(self) -> None:
        """The run has ended."""
        if self.is_open:
            self.is_open = False
            KEPT.let_go(self.name)


class Hand:
    """The worker of a run in its own process, made by `make()` when the first part comes."""

    def __init__(self, make: Callable[[], Any]):
        self._make: Callable[[], Any] | None = make
        self._worker: Any = None

    def answer(self, what: str, common: State, part: State) -> State:
        try:
            if self._make is not None:
                self._worker, self._make = self._make(), None
            found: State = getattr(self._worker, what)(common, part)
            return found
        except UserError as mistake:
            return {"mistake": str(mistake)}
        except Exception:
            return {"error": traceback.format_exc()}
