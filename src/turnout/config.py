"""Experiments as TOML, in and out, and single settings from the command line; clear errors.

Everything is driven by the dataclasses' own type hints: a table becomes the object its field is annotated with, a role
(a protocol with several implementations) is chosen by `kind`, and an unknown key is an error with the nearest names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from turnout.errors import Mistake, nearest
from turnout.kinds import KINDS, find, imported, name_of
from turnout.settings import Experiment

FREE_TO_CHANGE = ("rounds", "stop", "title", "runtime")  # what may differ when a run is resumed


def load(path: str | Path) -> Experiment:
    """Read an experiment file."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Mistake(f"cannot read the experiment file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} is not valid TOML: {error}") from error
    return from_table(table)


def from_table(table: Mapping[str, Any]) -> Experiment:
    """An experiment from nested tables.

    >>> from_table({"rounds": 3, "algorithm": {"weighting": "A"}}).algorithm.weighting
    CompleteOnly()
    """
    return build(Experiment, dict(table), "")


def build(hint: Any, value: Any, path: str) -> Any:
    """A value of the hinted type from what TOML gave, or a mistake that says where."""
    if hint in KINDS:
        return _build_role(hint, value, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _build_union(arguments, value, path)
    if origin in (tuple, list, Sequence) and isinstance(value, list | tuple):
        return tuple(build(arguments[0], item, f"{path}.{i}") for i, item in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {name: build(arguments[1], item, f"{path}.{name}") for name, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build_fields(hint, value, path)
    if origin is Callable and isinstance(value, str) and ":" in value:
        return imported(value, path)
    return _build_plain(hint, value, path)


def _build_role(role: Any, value: Any, path: str) -> Any:
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict):
        return value  # an object given in Python
    if "kind" not in value:
        raise Mistake(f'{path} needs a kind: {path}.kind = "..." {nearest("", KINDS[role])}')
    maker = find(role, value["kind"], path)
    rest = {name: item for name, item in value.items() if name != "kind"}
    if not rest and not inspect.isclass(maker) and not _makes_part(maker):
        return maker  # a function that is itself the part, such as a predicate
    return _build_fields(maker, rest, path)


def _makes_part(maker: Any) -> bool:
    """Whether a function makes a part (all its parameters have defaults) rather than being one."""
    return all(
        p.default is not p.empty or p.kind == p.VAR_POSITIONAL for p in inspect.signature(maker).parameters.values()
    )


def _build_union(options: Sequence[Any], value: Any, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    wanted = [o for o in options if o is not type(None)]
    first: Mistake | None = None
    for option in wanted:
        try:
            return build(option, value, path)
        except Mistake as mistake:
            first = first or mistake
    assert first is not None
    raise first


def _build_fields(maker: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        if isinstance(maker, type) and isinstance(value, maker):
            return value
        raise Mistake(f"{path or 'the experiment'} must be a table of settings, not {value!r}")
    hints = settable(maker)
    arguments = {}
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        if name not in hints:
            raise Mistake(f"unknown setting {here}: {nearest(name, hints)}")
        arguments[name] = build(hints[name], item, here)
    try:
        return maker(**arguments)
    except TypeError as error:
        raise Mistake(f"{path}: {str(error).split(') ')[-1]}") from error


def settable(maker: Any) -> dict[str, Any]:
    """The settings of a class or function with their type hints."""
    if dataclasses.is_dataclass(maker):
        hints = typing.get_type_hints(maker)
        return {f.name: hints[f.name] for f in dataclasses.fields(maker) if f.init}
    function = maker.__init__ if inspect.isclass(maker) else maker
    hints = typing.get_type_hints(function)
    names = [n for n, p in inspect.signature(function).parameters.items() if n != "self" and p.kind != p.VAR_POSITIONAL]
    return {name: hints.get(name, Any) for name in names}


def _build_plain(hint: Any, value: Any, path: str) -> Any:
    if hint is Any or hint is None:
        return value
    origin = typing.get_origin(hint) or hint
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    ok = callable(value) if origin is Callable else isinstance(origin, type) and isinstance(value, origin)
    if ok and not (isinstance(value, bool) and hint is not bool):
        return value
    wanted = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list"}
    plain = wanted.get(origin, getattr(origin, "__name__", str(origin)))
    raise Mistake(f"{path} must be {plain}, not {value!r}")


def with_setting(experiment: Experiment, setting: str) -> Experiment:
    """One `a.b.c=value` from the command line, applied.

    >>> with_setting(Experiment(), "algorithm.local.optimizer.lr=0.5").algorithm.local.optimizer.lr
    0.5
    """
    path, equals, text = setting.partition("=")
    if not equals:
        raise Mistake(f"--set {setting}: write it as path=value, such as --set algorithm.local.epochs=5")
    return with_value(experiment, path.strip(), parse_value(text.strip()))


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def with_value(thing: Any, path: str, value: Any, above: str = "") -> Any:
    """The object with one setting replaced, by dotted path; a role's `kind` replaces the whole part."""
    name, _, rest = path.partition(".")
    here = f"{above}.{name}" if above else name
    if isinstance(thing, tuple):
        return _with_item(thing, name, rest, value, here)
    hints = settable(type(thing)) if dataclasses.is_dataclass(thing) else {}
    if name not in hints:
        raise Mistake(f"unknown setting {here}: {nearest(name, hints)}")
    if rest and rest != "kind":
        return dataclasses.replace(thing, **{name: with_value(getattr(thing, name), rest, value, here)})
    return dataclasses.replace(thing, **{name: build(hints[name], value, here)})


def _with_item(items: tuple[Any, ...], name: str, rest: str, value: Any, here: str) -> tuple[Any, ...]:
    if not name.isdigit() or int(name) >= len(items) or not rest:
        raise Mistake(f"{here}: give the number of one of the {len(items)} entries and a setting, such as terms.0.mu")
    i = int(name)
    return (*items[:i], with_value(items[i], rest, value, here), *items[i + 1 :])


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
    return str(thing) if isinstance(thing, Path) else thing


def role_in(hint: Any) -> Any:
    """The role a hint names, through optionals and tuples."""
    if hint in KINDS:
        return hint
    return next((found for a in typing.get_args(hint) if (found := role_in(a)) is not None), None)


def _hash(thing: Any) -> str:
    """A user's own object by the hash of its content or source: it can be recognised, not rebuilt."""
    digest = hashlib.sha256()
    if isinstance(thing, Tensor):
        digest.update(repr((tuple(thing.shape), thing.dtype)).encode() + thing.detach().cpu().numpy().tobytes())
    elif isinstance(thing, nn.Module):
        for name, value in thing.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    else:
        try:
            digest.update(inspect.getsource(thing).encode())
        except (OSError, TypeError):
            digest.update(repr(thing).encode())
    return digest.hexdigest()[:16]


def to_toml(experiment: Experiment) -> str:
    """The exact experiment as a TOML text."""
    return "\n".join(_lines(to_table(experiment), "")) + "\n"


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
    return json.dumps(value, ensure_ascii=False)


def check_same(path: Path, experiment: Experiment) -> None:
    """Refuse to go on with a run under other settings than it began with."""
    before = tomllib.loads(path.read_text(encoding="utf-8"))
    now = tomllib.loads(to_toml(experiment))
    changed = [name for name in _differences(before, now) if name.split(".")[0] not in FREE_TO_CHANGE]
    if changed:
        raise Mistake(
            f"{path.parent} holds a run with other settings ({', '.join(changed[:3])}): choose another --out folder, "
            f"or give the settings of {path}"
        )


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(a.keys() | b.keys())
        return [d for n in names for d in _differences(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
