"""Whether the settings of an experiment that was made in Python are of the types they are said to be.

A file's settings are checked as they are read (config.py). Objects can hold anything, and further down their numbers
are handed to C; so every field is looked at once, before the first round.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnout.config.kinds import KINDS, settable
from turnout.config.read import in_words
from turnout.errors import Mistake, check_part

PLAIN: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real, str: str, bool: bool, Path: (str, Path)}
MANY = 1000  # a longer list is data, not settings


def check_settings(part: Any, path: str = "") -> None:
    """Refuse the first field, at any depth, that holds something else than it says."""
    try:
        hints = settable(type(part))
    except (NameError, TypeError):  # somebody's own class, with hints that cannot be resolved
        return
    for name, hint in hints.items():
        here = f"{path}.{name}" if path else name
        value = getattr(part, name, None)
        _check(hint, value, here)
        items = [(here, value)]
        if isinstance(value, tuple | list):
            items = [(f"{here}.{i}", item) for i, item in enumerate(value[:MANY])]
        for where, item in items:
            if dataclasses.is_dataclass(item) and not isinstance(item, type):
                check_settings(item, where)


def _check(hint: Any, value: Any, here: str) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise Mistake(f"{here} is not a number (nan): give one")
    if _is_role(hint):
        check_part(here, value, hint, _example(hint))
    elif not _fits(hint, value):
        raise Mistake(f"{here} must be {_words(hint)}, not {value!r}")


def _is_role(hint: Any) -> bool:
    return isinstance(hint, type) and hint in KINDS and getattr(hint, "_is_protocol", False)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is of a plain type, or of a list or choice of such; what is not plain is not judged here."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(option, value) for option in arguments)
    if hint is type(None):
        return value is None
    if hint in PLAIN:
        return isinstance(value, PLAIN[hint]) and (hint is bool or not isinstance(value, bool))
    if origin in (tuple, list, Sequence):
        if not isinstance(value, tuple | list):
            return not isinstance(value, str | numbers.Number)
        alike = len(arguments) == 1 or arguments[1:] == (Ellipsis,)
        return len(value) > MANY or not alike or all(_fits(arguments[0], item) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin is Callable or hint is Callable:
        return callable(value)
    if _is_role(hint):
        return not isinstance(value, str | numbers.Number | type(None))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return isinstance(value, hint)
    return True


def _words(hint: Any) -> str:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return " or ".join(_one_word(option) for option in options)


def _one_word(hint: Any) -> str:
    if _is_role(hint):
        return f"an object such as {_example(hint)}"
    return "None" if hint is type(None) else in_words(hint)


def _example(role: Any) -> str:
    return f"{next(iter(KINDS[role].values())).__name__}(...)"
