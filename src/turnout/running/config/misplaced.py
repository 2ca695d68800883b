"""What is meant by a name that is not known where it was written: near names here, or the place where it is known."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from turnout.errors import SYNONYMS, UserError, near, nearest, plain
from turnout.experiment import Experiment
from turnout.running.config.hints import Shape, parsed, required, role_in, settable
from turnout.running.config.kinds import KINDS, ROLE_NAMES


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


def elsewhere(kind: str) -> Iterator[str]:
    """The roles that have a kind of this name, each with the setting that takes it.

    >>> list(elsewhere("FedProx"))
    ['it is a kind of term, algorithm.terms = "fedprox"']
    """
    for role, place in _places().items():
        for name, maker in KINDS[role].items():
            if plain(name) == plain(kind):
                settings = "".join(f", {setting} = ..." for setting in required(maker) if isinstance(maker, type))
                written = f'{{ kind = "{name}"{settings} }}' if settings else f'"{name}"'
                yield f"it is a kind of {ROLE_NAMES[role]}, {place} = {written}"


@functools.cache
def _places() -> dict[Any, str]:
    """The setting of an experiment that takes each role; the shortest path where several do."""
    found: dict[Any, str] = {}
    makers: list[tuple[str, Any]] = [("", Experiment)]
    for path, maker in makers:  # it grows
        for name, hint in settable(maker).items():
            here, role = f"{path}.{name}".lstrip("."), role_in(hint)
            if role is not None and role not in found:
                found[role] = here
                makers += [(here, kind) for kind in KINDS[role].values()]
            elif parsed(hint).shape is Shape.SETTINGS:
                makers.append((here, hint))
    return found


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
    except (TypeError, UserError):
        return None
