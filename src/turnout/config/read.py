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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnout.config.dotted import function_named
from turnout.config.hints import Shape, fits, in_words, nothing, parsed, required, settable
from turnout.config.kinds import KINDS, ROLE_NAMES, UNSAID, find
from turnout.config.misplaced import meant
from turnout.config.write import OWN_OBJECT, said, table_to_toml, to_table, to_toml
from turnout.errors import Mistake, lacking, nearest
from turnout.experiment import Experiment
from turnout.machine.sealed import check_text
from turnout.models import ModelSpec

RUN_FILE = "experiment.toml"  # what a run's own file is called
CHANGED = (
    "a run goes on with the settings it began with (--set changes rounds, stop and title); if it was you who changed "
    "it, delete its last line"
)
FREE_TO_CHANGE = ("rounds", "stop", "title", "track", "runtime")  # what may differ when a run is resumed


def load(path: str | Path) -> Experiment:
    """Read an experiment file that holds one experiment."""
    table = read_file(path)
    if "variants" in table:
        raise Mistake(f"{path} has variants: turnout run {path} runs them all; one experiment has no such section")
    return from_table(table)


def read_file(path: str | Path) -> dict[str, Any]:
    """An experiment file as tables; variants.py makes experiments of one that has variants."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).name == RUN_FILE:
            check_text(Path(path), text, CHANGED)
        return tomllib.loads(text)
    except OSError as error:
        hint = f"; turnout init {path} writes one to start from" if isinstance(error, FileNotFoundError) else ""
        raise Mistake(f"cannot read the experiment file {path}: {error.strerror}{hint}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Mistake(f"{path} is not valid TOML: {error}") from error


def from_table(table: Mapping[str, Any]) -> Experiment:
    """An experiment from nested tables.

    >>> from_table({"rounds": 3, "algorithm": {"weighting": "A"}}).algorithm.weighting
    CompleteOnly()
    """
    return build(Experiment, dict(table), "")


def build(hint: Any, value: Any, path: str) -> Any:
    """A value of the hinted type from what TOML gave, or a mistake that says where."""
    if isinstance(value, str) and re.fullmatch(OWN_OBJECT, value) and hint is not str:
        raise Mistake(
            f"{path} was an object of your own ({value}), which a file can name but not hold: give the experiment in "
            "Python, to.run(experiment, out, resume=True) or to.open_run(folder, experiment=experiment)"
        )
    found = parsed(hint)
    match found.shape:
        case Shape.ROLE:
            return _build_role(hint, value, path)
        case Shape.CHOICE:
            return _build_choice(hint, value, path)
        case Shape.LIST if isinstance(value, list | tuple):
            return tuple(build(found.inside[0], item, f"{path}.{i}") for i, item in enumerate(value))
        case Shape.LIST if parsed(found.inside[0]).shape is Shape.ROLE:  # a single part needs no list
            return (build(found.inside[0], value, path),)
        case Shape.TABLE if isinstance(value, dict):
            return {name: build(found.inside[0], item, f"{path}.{name}") for name, item in value.items()}
        case Shape.SET if isinstance(value, list | tuple | set | frozenset):
            return typing.get_origin(hint)(build(found.inside[0], item, f"{path}.{i}") for i, item in enumerate(value))
        case Shape.NAMED if isinstance(value, str) and value in hint.__members__:
            return hint[value]
        case Shape.LITERAL | Shape.NAMED if fits(hint, value):
            return value
        case Shape.SETTINGS:
            return _build_fields(hint, value, path)
        case Shape.FUNCTION if isinstance(value, str) and ":" in value:
            return function_named(value, hint, path)
        case Shape.FUNCTION if callable(value):
            return value
        case Shape.PLAIN if fits(hint, value):
            return hint(value) if hint in (float, Path) else value
        case Shape.OTHER if hint is Any or (isinstance(hint, type) and isinstance(value, hint)):
            return value
    raise Mistake(f"{path} must be {in_words(hint)}, not {value!r}")


def _build_role(role: Any, value: Any, path: str) -> Any:
    if isinstance(value, str):
        value = {"kind": value}
    if value is None or isinstance(value, bool | int | float | list):
        raise Mistake(f"{path} must be a kind or a table with one, not {value!r}: {nearest('', KINDS[role])}")
    if not isinstance(value, dict):
        return value  # an object given in Python
    if role in UNSAID:
        value = {"kind": UNSAID[role]} | value
    if "kind" not in value:
        raise Mistake(f'{path} needs a kind: {path}.kind = "..." {nearest("", KINDS[role])}')
    if not isinstance(value["kind"], str):
        raise Mistake(f"{path}.kind must be a text, not {value['kind']!r}: {nearest('', KINDS[role])}")
    maker = find(role, value["kind"], path)
    rest = {name: item for name, item in value.items() if name != "kind"}
    if _is_part(role, maker):
        if rest:
            raise Mistake(f"{path}: {value['kind']} is a function, which has no settings: leave out {', '.join(rest)}")
        return maker
    part = _build_fields(maker, rest, path)
    missing = lacking(part, role)
    if missing:
        raise Mistake(f"{path}: {value['kind']} is no {ROLE_NAMES[role]}, it lacks {', '.join(missing)}")
    return part


def _is_part(role: Any, maker: Any) -> bool:
    """Whether a function is itself the part (a predicate, a function that makes a module) rather than making one."""
    if role is ModelSpec and maker not in KINDS[role].values():
        return not hasattr(maker, "build")
    return not inspect.isclass(maker) and bool(required(maker))


def _build_choice(hint: Any, value: Any, path: str) -> Any:
    options = parsed(hint).inside
    wanted = [o for o in options if o is not type(None)]
    if len(wanted) < len(options) and (value is None or _says_nothing(hint, wanted, value)):
        return None
    mistakes = []
    for option in wanted:
        try:
            return build(option, value, path)
        except Mistake as mistake:
            mistakes.append(mistake)
    if len(mistakes) > 1 and not any(parsed(option).shape in (Shape.ROLE, Shape.SETTINGS) for option in wanted):
        raise Mistake(f"{path} must be {' or '.join(dict.fromkeys(map(in_words, wanted)))}, not {value!r}")
    raise mistakes[0]


def _says_nothing(hint: Any, wanted: Sequence[Any], value: Any) -> bool:
    if nothing(hint) is False:
        return value is False and bool not in wanted
    return isinstance(value, str) and value == nothing(hint)


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
            raise Mistake(f"unknown setting {here}: {meant(name, maker, path)}")
        arguments[name] = build(hints[name], item, here)
    missing = [name for name in required(maker) if name not in arguments]
    if missing:
        raise Mistake(f"{path or 'the experiment'} needs {', '.join(missing)}: add {path}.{missing[0]} = ...")
    return maker(**arguments)


def with_setting(experiment: Experiment, setting: str) -> Experiment:
    """One `a.b.c=value` from the command line, applied.

    >>> with_setting(Experiment(), "algorithm.local.optimizer.lr=0.5").algorithm.local.optimizer.lr
    0.5
    """
    path, equals, text = setting.partition("=")
    if not equals or not path.strip() or not text.strip():
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
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        raise Mistake(f"{here}: {above} has no settings of its own here; give it a kind first, --set {above}.kind=...")
    hints = settable(type(thing))
    if name not in hints:
        raise Mistake(f"unknown setting {here}: {meant(name, thing, above)}")
    changed = build(hints[name], value, here) if rest in ("", "kind") else None
    if rest not in ("", "kind"):
        changed = with_value(getattr(thing, name), rest, value, here)
    return dataclasses.replace(thing, **{name: changed})


def _with_item(items: tuple[Any, ...], name: str, rest: str, value: Any, here: str) -> tuple[Any, ...]:
    if not name.isdigit() or int(name) >= len(items) or not rest:
        raise Mistake(f"{here}: give the number of one of the {len(items)} entries and a setting, such as terms.0.mu")
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
    differences = _differences(_whole(_table_of(path)), tomllib.loads(to_toml(experiment)))
    return [name for name in differences if name.split(".")[0] not in ("title", "runtime")]


def _whole(table: dict[str, Any]) -> dict[str, Any]:
    """A file's table with the settings that an earlier version did not have; as it is where it cannot be built."""
    try:
        return tomllib.loads(to_toml(from_table(table)))
    except Mistake:
        return table


def _table_of(path: Path) -> dict[str, Any]:
    return read_file(path)


def check_same(path: Path, experiment: Experiment) -> str | None:
    """Refuse to go on with a run under other settings than it began with.

    What its file should say from now on comes back where rounds, stop rules or title are new; what it runs on stays.
    """
    before, now = _table_of(path), tomllib.loads(to_toml(experiment))
    if changed := changed_settings(path, experiment):
        raise Mistake(
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
