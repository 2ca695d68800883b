"""The one exception for a person's mistake: a sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Mistake(ValueError):
    """Something a person wrote or brought cannot work; the message is shown without a traceback."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name.

    >>> nearest("tarces", ["always", "traces"])
    "did you mean 'traces'? (known: always, traces)"
    >>> nearest("xyz", ["always", "traces"])
    'known are always, traces'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    if not close:
        return f"known are {', '.join(names)}"
    return f"did you mean {' or '.join(repr(n) for n in close)}? (known: {', '.join(names)})"
