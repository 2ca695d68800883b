"""Which clients a round is waiting for: a round announces its cohort before it waits for replies.

The round does not know whether anything listens; the loop that writes the records does (`with publisher.active()`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

OFTEN = 0.5  # least seconds between two announcements


class Publisher:
    """Calls a listener with (round, clients), at most once every OFTEN seconds."""

    def __init__(self, listener: Callable[[int, Sequence[int]], None]) -> None:
        self.listener, self.last = listener, float("-inf")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Pass announcements that this thread makes inside the block to the listener."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Publisher | None] = ContextVar("publisher", default=None)


def asked(t: int, clients: Callable[[], Sequence[int]]) -> None:
    """Announce the clients that a round has asked; the list is made only if a publisher is active.

    >>> seen = []
    >>> with Publisher(lambda t, clients: seen.append((t, clients))).active():
    ...     asked(3, lambda: [1, 2])
    ...     asked(4, lambda: [1, 2])  # too soon after the first
    >>> seen
    [(3, [1, 2])]
    """
    publisher, now = _current.get(), time.monotonic()
    if publisher is not None and now - publisher.last >= OFTEN:
        publisher.last = now
        publisher.listener(t, clients())
