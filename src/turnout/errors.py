"""The one exception for a person's mistake: a sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class Mistake(ValueError):
    """Something a person wrote or brought cannot work; the message is shown without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython and notebooks show in place of a traceback."""
        return [f"Mistake: {self}"]


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


def check_part(where: str, part: Any, role: type, example: str) -> None:
    """Refuse what cannot play a role: a protocol's names must be there, of anything else it must be an instance.

    >>> check_part("algorithm.server", "adam", object, "ServerAdam()")
    Traceback (most recent call last):
    turnout.errors.Mistake: algorithm.server is the text 'adam': in Python give an object, such as ServerAdam()
    """
    if isinstance(part, str):
        raise Mistake(f"{where} is the text {part!r}: in Python give an object, such as {example}")
    if isinstance(part, type):
        raise Mistake(f"{where} is the class {part.__name__} itself: give an object, such as {example}")
    protocol = getattr(role, "_is_protocol", False)
    missing = lacking(part, role) if protocol else []
    if missing or not (protocol or isinstance(part, role)):
        what = f" (it has no {', '.join(missing)})" if missing else ""
        raise Mistake(f"{where} is an object of class {type(part).__name__}{what}: give one such as {example}")


def lacking(part: Any, role: Any) -> list[str]:
    """The names that a role's class has and this object has not; a role that is no class asks for none.

    >>> lacking([], Iterable), lacking({}, list)[:3]
    ([], ['append', 'insert', 'extend'])
    """
    names = [*vars(role), *getattr(role, "__annotations__", ())] if isinstance(role, type) else []
    return [name for name in names if not name.startswith("_") and not hasattr(part, name)]
