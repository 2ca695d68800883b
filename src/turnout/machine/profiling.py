"""Seconds by stage of the work: `with stage("encode"): ...`, or `@staged("encode")` on a function.

A stage costs next to nothing unless this thread has a running stopwatch (`with watch.running("rest"): ...`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import torch

Params = ParamSpec("Params")
Result = TypeVar("Result")
_NOT_TIMED = nullcontext()


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
        try:
            with self.stage(rest):
                yield
        finally:
            _current.reset(token)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._count()
        self._stages.append(name)
        try:
            yield
        finally:
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


def stage(name: str) -> AbstractContextManager[None]:
    """A stage of the work, timed if this thread's stopwatch is running.

    >>> watch = Stopwatch()
    >>> with watch.running("rest"), stage("first"), stage("second"):
    ...     pass
    >>> sorted(watch.seconds)
    ['first', 'rest', 'second']
    """
    watch = _current.get()
    return _NOT_TIMED if watch is None else watch.stage(name)


def staged(name: str) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Decorator: each call of the function is a stage of the work."""

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        @functools.wraps(function)
        def timed(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            with stage(name):
                return function(*args, **kwargs)

        return timed

    return decorate
