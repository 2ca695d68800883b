"""Who is at work now, for whoever looks on: a round says whom it has asked before it waits for them.

The round does not know whether anybody listens; the loop that keeps the records does (`with publisher.heard()`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

OFTEN = 0.5  # seconds at least between two announcements: of rounds faster than that, a look is enough

Listener = Callable[[int, Sequence[int]], None]


class Publisher:
    """Passes on at most one announcement every OFTEN seconds."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self._last = listener, float("-inf")

    @contextmanager
    def heard(self) -> Iterator[None]:
        """While this lasts, the listener hears who is asked in which round."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def ring(self, t: int, clients: Callable[[], Sequence[int]]) -> None:
        now = time.monotonic()
        if now - self._last >= OFTEN:
            self._last = now
            self._listener(t, clients())


_current: ContextVar[Publisher | None] = ContextVar("bell", default=None)


def asked(t: int, clients: Callable[[], Sequence[int]]) -> None:
    """Say whom a round has asked; the list is made only if somebody listens.

    >>> heard = []
    >>> with Publisher(lambda t, clients: heard.append((t, clients))).heard():
    ...     asked(3, lambda: [1, 2])
    ...     asked(4, lambda: [1, 2])  # too soon after the other
    >>> heard
    [(3, [1, 2])]
    """
    publisher = _current.get()
    if publisher is not None:
        publisher.ring(t, clients)
