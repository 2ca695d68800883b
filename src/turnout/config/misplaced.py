"""What somebody meant by a setting that is not where it was written: near names here, or the same name further in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from turnout.config.hints import settable
from turnout.errors import SYNONYMS, Mistake, near, nearest


def meant(name: str, part: Any, path: str = "") -> str:
    """A hint for a setting that a part (or what a kind makes by default) has not; `path` leads to the part.

    >>> from turnout.experiment import Algorithm
    >>> meant("lr", Algorithm, "algorithm")
    'did you mean algorithm.local.optimizer.lr or algorithm.server.lr?'
    """
    here = list(settable(part if isinstance(part, type) or callable(part) else type(part)))
    if not here:
        return "it has no settings"
    below = dict(_below(part, path))
    wanted = {name, SYNONYMS.get(name, name)}
    places = [place for place, known in below.items() if known in wanted]
    if not places and not near(name, here):
        alike = near(name, set(below.values()))
        places = [place for place, known in below.items() if known in alike[:1]]
    return f"did you mean {' or '.join(places[:2])}?" if places else nearest(name, here)


def _below(part: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, name) of the settings of the parts inside a part, in the order of its fields."""
    for outer, inside in _fields(_made(part)):
        for name, _ in _fields(inside):
            yield f"{path}.{outer}.{name}".lstrip("."), name
        yield from _below(inside, f"{path}.{outer}".lstrip("."))


def _fields(part: Any) -> list[tuple[str, Any]]:
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return []
    return [(name, getattr(part, name)) for name in settable(type(part))]


def _made(part: Any) -> Any:
    """The part itself; of a kind, what it makes without settings, if it can."""
    if not isinstance(part, type):
        return part
    try:
        return part()
    except (TypeError, Mistake):
        return None
