"""Seconds by stage of the work: `with stage("encode"): ...`, or `@stage("encode")` on a function.

A stage costs next to nothing unless this thread has a running stopwatch (`with watch.running("rest"): ...`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar

import torch


class Stopwatch:
    """Seconds by stage. A stage inside another one interrupts the outer stage's time until it ends.

    On a GPU each change of stage waits for the work that was launched before it.
    """

    def __init__(self, device: torch.device | None = None):
        self.seconds: dict[str, float] = {}
        self._device, self._stages = device, list[str]()
        self._since = 0.0

    @contextmanager
    def running(self, rest: str) -> Iterator[None]:
        """Time this thread's stages inside the block; time outside any stage counts for the stage `rest`."""
        token = _current.set(self)
        self.begin(rest)
        try:
            yield
        finally:
            self.end()
            _current.reset(token)

    def begin(self, name: str) -> None:
        self._count()
        self._stages.append(name)

    def end(self) -> None:
        self._count()
        self._stages.pop()

    def _count(self) -> None:
        """Add the time since the last change of stage to the stage that ends or is interrupted."""
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._stages:
            stage = self._stages[-1]
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now


_current: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


class stage(ContextDecorator):  # noqa: N801 (reads like a function)
    """A stage of the work, timed if this thread's stopwatch is running.

    >>> watch = Stopwatch()
    >>> with watch.running("rest"), stage("first"), stage("second"):
    ...     pass
    >>> sorted(watch.seconds)
    ['first', 'rest', 'second']
    """

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        if (watch := _current.get()) is not None:
            watch.begin(self.name)

    def __exit__(self, *error: object) -> None:
        if (watch := _current.get()) is not None:
            watch.end()
