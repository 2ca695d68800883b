"""Experiments from TOML, and single settings from the command line; write.py is the way back.

Everything is driven by the dataclasses' own type hints (hints.py): a table becomes the object its field is annotated
with, a role (a protocol with several implementations) is chosen by `kind`, and an unknown key is an error with the
nearest names.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from turnout.errors import UserError, lacking, nearest
from turnout.experiment import Experiment
from turnout.models import ModelSpec
from turnout.running.config.dotted import OWN, NamesOnly, PartsOf, Permission, usual_code
from turnout.running.config.hints import Shape, fits, in_words, nothing, parsed, required, settable, takes_any
from turnout.running.config.kinds import KINDS, ROLE_NAMES, UNSAID, check_plays, find
from turnout.running.config.misplaced import meant
from turnout.running.config.text import parse_value, read_file
from turnout.running.config.write import OWN_OBJECT, said, table_to_toml, to_table, to_toml

FREE_TO_CHANGE = ("rounds", "stop", "title", "track", "runtime")  # what may differ when a run is resumed


def load(path: str | Path, code: Permission | None = None) -> Experiment:
    """Read an experiment file that holds one experiment."""
    table = read_file(path)
    if "variants" in table:
        raise UserError(f"{path} has variants: turnout run {path} runs them all; one experiment has no such section")
    return from_table(table, code)


def from_table(table: Mapping[str, Any], code: Permission | None = None) -> Experiment:
    """An experiment from nested tables.

    >>> from_table({"rounds": 3, "algorithm": {"weighting": "A"}}).algorithm.weighting
    CompleteOnly()
    """
    return build(Experiment, dict(table), "", code)


def build(hint: Any, value: Any, path: str, code: Permission | None = None) -> Any:
    """A value of the hinted type from what TOML gave, or a mistake that says where.

    All dotted paths are looked up before the first is imported. `code`: which are permitted; without, what the user
    permits (`usual_code`).
    """
    code = code or usual_code()
    if any(":" in text for text in _texts(value)):
        _build(hint, value, path, NamesOnly(code))
    return _build(hint, value, path, code)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _build(hint: Any, value: Any, path: str, code: Permission) -> Any:
    if isinstance(value, str) and re.fullmatch(OWN_OBJECT, value) and hint is not str:
        raise UserError(
            f"{path} was an object of your own ({value}), which a file can name but not hold: give the experiment in "
            "Python, to.run(experiment, out, resume=True) or to.open_run(folder, experiment=experiment)"
        )
    found = parsed(hint)
    match found.shape:
        case Shape.ROLE:
            return _build_role(hint, value, path, code)
        case Shape.CHOICE:
            return _build_choice(hint, value, path, code)
        case Shape.LIST if isinstance(value, list | tuple):
            return _items(tuple, found.inside[0], value, path, code)
        case Shape.LIST if parsed(found.inside[0]).shape is Shape.ROLE:  # a single part needs no list
            built = _build(found.inside[0], value, path, code)
            return OWN if built is OWN else (built,)
        case Shape.TABLE if isinstance(value, dict):
            table = {name: _build(found.inside[0], item, f"{path}.{name}", code) for name, item in value.items()}
            return OWN if any(item is OWN for item in table.values()) else table
        case Shape.SET if isinstance(value, list | tuple | set | frozenset):
            return _items(typing.get_origin(hint), found.inside[0], value, path, code)
        case Shape.NAMED if isinstance(value, str) and value in hint.__members__:
            return hint[value]
        case Shape.LITERAL | Shape.NAMED if fits(hint, value):
            return value
        case Shape.SETTINGS:
            return _build_fields(hint, value, path, code)
        case Shape.FUNCTION if isinstance(value, str) and ":" in value:
            return code.named(value, path)
        case Shape.FUNCTION if callable(value):
            return value
        case Shape.PLAIN if fits(hint, value):
            return hint(value) if hint in (float, Path) else value
        case Shape.OTHER if hint is Any or (isinstance(hint, type) and isinstance(value, hint)):
            return value
    raise UserError(f"{path} must be {in_words(hint)}, not {value!r}")


def _items(kind: Any, hint: Any, values: Any, path: str, code: Permission) -> Any:
    built = [_build(hint, item, f"{path}.{i}", code) for i, item in enumerate(values)]
    return OWN if any(item is OWN for item in built) else kind(built)


def _build_role(role: Any, value: Any, path: str, code: Permission) -> Any:
    if isinstance(value, str):
        value = {"kind": value}
    if value is None or isinstance(value, bool | int | float | list):
        raise UserError(f"{path} must be a kind or a table with one, not {value!r}: {nearest('', KINDS[role])}")
    if not isinstance(value, dict):
        return value  # an object given in Python
    if role in UNSAID:
        value = {"kind": UNSAID[role]} | value
    if "kind" not in value:
        raise UserError(f'{path} needs a kind: {path}.kind = "..." {nearest("", KINDS[role])}')
    if not isinstance(value["kind"], str):
        raise UserError(f"{path}.kind must be a text, not {value['kind']!r}: {nearest('', KINDS[role])}")
    maker = find(role, value["kind"], path, code)
    rest = {name: item for name, item in value.items() if name != "kind"}
    if maker is OWN:
        return OWN
    if maker not in KINDS[role].values():
        return _build_own(role, maker, rest, path, code)
    return _build_part(role, maker, rest, path, code)


def _build_own(role: Any, maker: Any, settings: dict[str, Any], path: str, code: Permission) -> Any:
    """A part from a class or function of the user's own; it must be declared to play the role."""
    dotted = f"{maker.__module__}:{maker.__qualname__}"
    if role is ModelSpec and not _is_spec(maker):  # it makes a module, which is looked at when the model is built
        arguments = _arguments(maker, settings, path, code)
        return partial(maker, **arguments) if arguments else maker
    if code.by_identity and inspect.isclass(maker):
        check_plays(role, maker, dotted, path)
    part = _build_part(role, maker, settings, path, code)
    if code.by_identity:
        check_plays(role, part, dotted, path)
    elif missing := lacking(part, role):
        raise UserError(f"{path}: {dotted} is no {ROLE_NAMES[role]}, it lacks {', '.join(missing)}")
    return part


def _is_spec(maker: Any) -> bool:
    """Whether a class is that of model specs, and does not make modules itself."""
    return inspect.isclass(maker) and not issubclass(maker, nn.Module) and hasattr(maker, "build")


def _build_part(role: Any, maker: Any, settings: dict[str, Any], path: str, code: Permission) -> Any:
    is_part = not isinstance(role, type) and not inspect.isclass(maker) and bool(required(maker))
    if is_part and settings:
        raise UserError(
            f"{path}: {maker.__name__} is a function, which has no settings: leave out {', '.join(settings)}"
        )
    return maker if is_part else _build_fields(maker, settings, path, code)


def _build_choice(hint: Any, value: Any, path: str, code: Permission) -> Any:
    options = parsed(hint).inside
    wanted = [o for o in options if o is not type(None)]
    if len(wanted) < len(options) and (value is None or _says_nothing(hint, wanted, value)):
        return None
    mistakes = []
    for option in wanted:
        try:
            return _build(option, value, path, code)
        except UserError as mistake:
            mistakes.append(mistake)
    if len(mistakes) > 1 and not any(parsed(option).shape in (Shape.ROLE, Shape.SETTINGS) for option in wanted):
        raise UserError(f"{path} must be {' or '.join(dict.fromkeys(map(in_words, wanted)))}, not {value!r}")
    raise mistakes[0]


def _says_nothing(hint: Any, wanted: Sequence[Any], value: Any) -> bool:
    if nothing(hint) is False:
        return value is False and bool not in wanted
    return isinstance(value, str) and value == nothing(hint)


def _build_fields(maker: Any, value: Any, path: str, code: Permission) -> Any:
    if not isinstance(value, dict):
        if isinstance(maker, type) and isinstance(value, maker):
            return value
        raise UserError(f"{path or 'the experiment'} must be a table of settings, not {value!r}")
    arguments = _arguments(maker, value, path, code)
    missing = [name for name in required(maker) if name not in arguments]
    if missing:
        raise UserError(f"{path or 'the experiment'} needs {', '.join(missing)}: add {path}.{missing[0]} = ...")
    return OWN if any(argument is OWN for argument in arguments.values()) else maker(**arguments)


def _arguments(maker: Any, value: dict[str, Any], path: str, code: Permission) -> dict[str, Any]:
    """The settings of a class or function, each of the type that it is annotated with."""
    hints, arguments = settable(maker), {}
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        if name not in hints and not takes_any(maker):
            raise UserError(f"unknown setting {here}: {meant(name, maker, path)}")
        arguments[name] = _build(hints.get(name, Any), item, here, code)
    return arguments


def with_setting(experiment: Experiment, setting: str) -> Experiment:
    """One `a.b.c=value` from the command line, applied.

    >>> with_setting(Experiment(), "algorithm.local.optimizer.lr=0.5").algorithm.local.optimizer.lr
    0.5
    """
    path, equals, text = setting.partition("=")
    if not equals or not path.strip() or not text.strip():
        raise UserError(f"--set {setting}: write it as path=value, such as --set algorithm.local.epochs=5")
    return with_value(experiment, path.strip(), parse_value(text.strip()))


def with_value(thing: Any, path: str, value: Any, above: str = "") -> Any:
    """The object with one setting replaced, by dotted path; a role's `kind` replaces the whole part."""
    name, _, rest = path.partition(".")
    here = f"{above}.{name}" if above else name
    if isinstance(thing, tuple):
        return _with_item(thing, name, rest, value, here)
    hints, now = settings_of(thing, here, above)
    if name not in hints:
        raise UserError(f"unknown setting {here}: {meant(name, thing, above)}")
    changed = build(hints[name], value, here) if rest in ("", "kind") else None
    if rest not in ("", "kind"):
        changed = with_value(now.get(name), rest, value, here)
    return replaced(thing, {name: changed})


def settings_of(thing: Any, here: str, above: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that a part may have, with their hints, and those that it has."""
    if isinstance(thing, partial):  # of a function that makes a model
        return settable(thing.func), thing.keywords
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        raise UserError(
            f"{here}: {above} has no settings of its own here; give it a kind first, --set {above}.kind=..."
        )
    hints = settable(type(thing))
    return hints, {name: getattr(thing, name) for name in hints}


def replaced(thing: Any, changes: Mapping[str, Any]) -> Any:
    """A part with some of its settings replaced."""
    return partial(thing, **changes) if isinstance(thing, partial) else dataclasses.replace(thing, **changes)


def _with_item(items: tuple[Any, ...], name: str, rest: str, value: Any, here: str) -> tuple[Any, ...]:
    if not name.isdigit() or int(name) >= len(items) or not rest:
        raise UserError(f"{here}: give the number of one of the {len(items)} entries and a setting, such as terms.0.mu")
    i = int(name)
    return (*items[:i], with_value(items[i], rest, value, here), *items[i + 1 :])


def lasting(experiment: Experiment) -> dict[str, Any]:
    """The settings that make a run the run it is: those that may not change when it is resumed.

    Without what is as by default, so that a setting that a later version has is no other run.
    """
    table = said(experiment, to_table(experiment))
    return {name: value for name, value in table.items() if name not in FREE_TO_CHANGE}


def changed_settings(path: Path, experiment: Experiment) -> list[str]:
    """The settings of an experiment that are not those of a run's file, but for those that may change."""
    return [name for name in new_settings(path, experiment) if name.split(".")[0] not in FREE_TO_CHANGE]


def new_settings(path: Path, experiment: Experiment) -> list[str]:
    """The settings of an experiment that are not those of a run's file, but for what it is called and runs on."""
    differences = _differences(_whole(read_file(path), experiment), tomllib.loads(to_toml(experiment)))
    return [name for name in differences if name.split(".")[0] not in ("title", "runtime")]


def _whole(table: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """A file's table with the settings that an earlier version did not have; as it is where it cannot be built."""
    try:
        return tomllib.loads(to_toml(from_table(table, PartsOf(experiment))))
    except UserError:
        return table


def check_same(path: Path, experiment: Experiment) -> str | None:
    """Refuse to go on with a run under other settings than it began with.

    What its file should say from now on comes back where rounds, stop rules or title are new; what it runs on stays.
    """
    before, now = read_file(path), tomllib.loads(to_toml(experiment))
    if changed := changed_settings(path, experiment):
        raise UserError(
            f"{path.parent} holds a run with other settings ({', '.join(changed[:3])}): choose another --out folder, "
            f"or give the settings of {path}"
        )
    after = {name: value for name, value in now.items() if name != "runtime"}
    after |= {"runtime": before["runtime"]} if "runtime" in before else {}
    return table_to_toml(after) if after != before else None


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(a.keys() | b.keys())
        return [d for n in names for d in _differences(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
