"""Experiments as TOML text: exact, and with a user's own objects as their dotted path or the hash of their source."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from turnout.config.hints import role_in, settable
from turnout.config.kinds import name_of
from turnout.experiment import Experiment

OWN_OBJECT = r"<\w+ [0-9a-f]{16}>"  # how a file names what only a program has


def to_table(thing: Any, role: Any = None) -> Any:
    """An object as nested tables: every field, so that the file is exact; what is None is left out."""
    if isinstance(thing, Tensor | nn.Module):
        return f"<{type(thing).__name__} {_hash(thing)}>"
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        hints = settable(type(thing))
        fields = {name: to_table(getattr(thing, name), role_in(hint)) for name, hint in hints.items()}
        named = {"kind": name_of(role, thing)} if role is not None else {}
        return named | {name: value for name, value in fields.items() if value is not None}
    if isinstance(thing, list | tuple):
        return [to_table(item, role) for item in thing]
    if isinstance(thing, Mapping):
        return {str(name): to_table(item) for name, item in thing.items()}
    if callable(thing):
        return name_of(role, thing) if "<" not in getattr(thing, "__qualname__", "<") else f"<source {_hash(thing)}>"
    if isinstance(thing, Path):
        return str(thing)
    return (
        thing if thing is None or isinstance(thing, str | int | float) else f"<{type(thing).__name__} {_hash(thing)}>"
    )


def _hash(thing: Any) -> str:
    """A user's own object by the hash of its content or source: it can be recognised, not rebuilt."""
    digest = hashlib.sha256()
    if isinstance(thing, Tensor):
        digest.update(repr((tuple(thing.shape), thing.dtype)).encode() + thing.detach().cpu().numpy().tobytes())
    elif isinstance(thing, nn.Module):
        digest.update(repr(thing).encode())
        for name, value in thing.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    else:
        source = thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
        try:
            digest.update(inspect.getsource(source).encode())
        except (OSError, TypeError):
            digest.update(repr(source).encode())
        inside = getattr(thing, "__dict__", {}) if source is not thing else {}
        if inspect.isfunction(thing):
            inside = inspect.getclosurevars(thing).nonlocals
        digest.update(repr({name: to_table(value) for name, value in sorted(inside.items())}).encode())
    return digest.hexdigest()[:16]


def to_toml(experiment: Experiment) -> str:
    """The exact experiment as a TOML text."""
    return table_to_toml(to_table(experiment))


def table_to_toml(table: Mapping[str, Any]) -> str:
    return "\n".join(_lines(table, "")) + "\n"


def _lines(table: Mapping[str, Any], path: str) -> list[str]:
    plain = {k: v for k, v in table.items() if not _is_table(v)}
    lines = [f"{k} = {scalar(v)}" for k, v in plain.items()]
    for name, value in table.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            lines += ["", f"[{here}]", *_lines(value, here)]
        elif _is_table(value):
            for item in value:
                lines += ["", f"[[{here}]]", *_lines(item, here)]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(i, dict) for i in value)
    )


def scalar(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else str(value).replace("infinity", "inf")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows it plain, TOML does not
