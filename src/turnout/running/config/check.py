"""Whether the settings of an experiment that was made in Python are of the types they are said to be.

A file's settings are checked as they are read (read.py). Objects can hold anything, and further down their numbers are
handed to C; so every field is looked at once, before the first round.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from turnout.errors import Absent, UserError, check_part
from turnout.running.config.hints import MANY, Shape, example, fits, in_words, parsed, settable


def check_settings(part: Any, path: str = "") -> None:
    """Refuse the first field, at any depth, that holds something else than it says."""
    try:
        hints = settable(type(part))
    except TypeError:  # somebody's own class, with hints that are no types
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
    if isinstance(value, Absent):
        raise UserError(value.why)
    if isinstance(value, float) and math.isnan(value):
        raise UserError(f"{here} is not a number (nan): give one")
    if parsed(hint).shape is Shape.ROLE and isinstance(hint, type):
        check_part(here, value, hint, example(hint))
    elif not fits(hint, value):
        raise UserError(f"{here} must be {in_words(hint)}, not {value!r}")
