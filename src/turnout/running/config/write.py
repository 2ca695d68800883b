"""Experiments as TOML text; read.py is the way back.

The text is exact: it has every setting. A user's own object is written as its dotted path, or as the hash of its
source if it has none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from torch import Tensor, nn

from turnout.errors import Absent, UserError
from turnout.experiment import Experiment
from turnout.machine.checksums import content
from turnout.running.config.hints import nothing, role_in, settable
from turnout.running.config.kinds import name_of

OWN_OBJECT = r"<\w+ [0-9a-f]{16}>"  # how a file names an object that only a program has


def to_table(thing: Any, role: Any = None) -> Any:
    """An object as nested tables with every field; a field that is None by default and is None is left out."""
    if isinstance(thing, Absent):
        raise UserError(thing.why)
    if isinstance(thing, np.generic):
        thing = thing.item()
    if isinstance(thing, Tensor | nn.Module):
        return f"<{type(thing).__name__} {_hash(thing)}>"
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        table: dict[str, Any] = {"kind": name_of(role, thing)} if role is not None else {}
        absent = {f.name for f in dataclasses.fields(thing) if f.default is None}
        for name, hint in settable(type(thing)).items():
            value = getattr(thing, name)
            if value is not None:
                table[name] = to_table(value, role_in(hint))
            elif name not in absent:
                table[name] = nothing(hint)
        return table
    if isinstance(thing, partial) and role is not None and not thing.args and _has_path(thing.func):
        return {"kind": name_of(role, thing.func)} | to_table(thing.keywords)
    if isinstance(thing, list | tuple):
        return [to_table(item, role) for item in thing]
    if isinstance(thing, set | frozenset):
        return sorted((to_table(item, role) for item in thing), key=repr)
    if isinstance(thing, Mapping):
        return {str(name): to_table(item, role) for name, item in thing.items()}
    if callable(thing):
        return name_of(role, thing) if _has_path(thing) else f"<source {_hash(thing)}>"
    if isinstance(thing, Path):
        return str(thing)
    if thing is None or isinstance(thing, str | int | float):
        return thing
    return f"<{type(thing).__name__} {_hash(thing)}>"


def _has_path(thing: Any) -> bool:
    """Whether a file can name a function or class by its dotted path."""
    return "<" not in getattr(thing, "__qualname__", "<")


def _hash(thing: Any) -> str:
    """The hash of the content or source of a user's own object: it can be recognised, not rebuilt."""
    digest = hashlib.sha256()
    if inspect.ismodule(thing):  # its contents have no end
        digest.update(thing.__name__.encode())
    elif isinstance(thing, Tensor):
        digest.update(repr((tuple(thing.shape), thing.dtype)).encode())
        digest.update(content(thing))
    elif isinstance(thing, nn.Module):
        digest.update(repr(thing).encode())
        for name, value in thing.state_dict().items():
            digest.update(name.encode())
            digest.update(content(value))
    else:
        source = thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
        try:
            digest.update(inspect.getsource(source).encode())
        except (OSError, TypeError):
            digest.update(repr(source).encode())
        inside = getattr(thing, "__dict__", {}) if source is not thing else {}
        if inspect.isfunction(thing):
            inside = inspect.getclosurevars(thing).nonlocals
        with suppress(RecursionError):  # objects that hold each other; the data has its own fingerprint
            digest.update(repr({name: to_table(value) for name, value in sorted(inside.items())}).encode())
    return digest.hexdigest()[:16]


def to_toml(experiment: Experiment) -> str:
    """The exact experiment as a TOML text."""
    return tomli_w.dumps(to_table(experiment))


def scalar(value: Any) -> str:
    """A value as TOML, in one line.

    >>> scalar([1, 0.5, True, "a"])
    '[1, 0.5, true, "a"]'
    """
    if isinstance(value, list):
        return "[" + ", ".join(map(scalar, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")
