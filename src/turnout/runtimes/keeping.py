"""What runtimes start and several runs after one another can use: processes, a Ray cluster.

A runtime asks for it when there is work and lets go of it when its run has ended. Within `KEPT.held()` it then stays
for the next run, and ends with the block; otherwise it ends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Kept:
    """Things that are started once, by name."""

    def __init__(self) -> None:
        self._things: dict[str, tuple[Any, Callable[[Any], None]]] = {}
        self._holders = 0

    def started(self, name: str, start: Callable[[], Any], end: Callable[[Any], None]) -> Any:
        """What is there under a name, or what `start()` makes; `end(it)` is called when nobody holds it any more."""
        if name not in self._things:
            self._things[name] = start(), end
        return self._things[name][0]

    def let_go(self, name: str) -> None:
        """A run that used it has ended."""
        if not self._holders:
            self.end(name)

    def end(self, name: str) -> None:
        """End it now, whoever holds it: it is broken, or its time is over."""
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
