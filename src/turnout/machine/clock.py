"""Seconds by stage of the work: `with stage("encode"): ...`, which costs next to nothing unless a stopwatch is running.

A profile starts a stopwatch (`with watch.running("the rest"): ...`), which times the stages that the same thread enters
within that block. Code that has stages does not know whether anybody measures them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_NOT_TIMED = nullcontext()


class Stopwatch:
    """Seconds by stage; a stage that begins within another stops the other's time until it ends.

    On a GPU each change of stage waits for the work that was launched before it.
    """

    def __init__(self, device: torch.device | None = None):
        self.seconds: dict[str, float] = {}
        self._device, self._stages = device, list[str]()
        self._since = 0.0

    @contextmanager
    def running(self, rest: str) -> Iterator[None]:
        """Time this thread's stages within the block; time that belongs to no stage is that of `rest`."""
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
        """Add the time since the last change of stage to the stage that is ending or interrupted."""
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


def staged(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function as a stage."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with stage(name):
                return function(*args, **kwargs)

        return timed

    return decorate
