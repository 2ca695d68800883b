"""Experiments from TOML; write.py is the way back.

The dataclasses' own type hints (hints.py) drive everything: a table becomes the object its field is annotated with, a
role (a protocol with several implementations) is chosen by `kind`, and an unknown key is an error with the nearest
names.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from turnout.errors import SYNONYMS, Absent, UserError, near, nearest
from turnout.experiment import Experiment
from turnout.machine.checksums import check_text
from turnout.models import ModelSpec
from turnout.running.config.dotted import OWN, Code, usual_code
from turnout.running.config.hints import Shape, fits, in_words, nothing, parsed, required, settable, takes_any
from turnout.running.config.kinds import DEFAULT_KINDS, check_plays, find, is_kind, kind_names
from turnout.running.config.write import OWN_OBJECT
from turnout.running.config.write import to_toml as to_toml

RUN_FILE = "experiment.toml"  # the name of a run's own file
CHANGED = (
    "a run keeps the settings it began with (--set changes rounds, stop and title); if you changed it yourself, delete "
    "its last line"
)
BITS = 63  # of a whole number, beside its sign: what TOML promises, and records can hold


def read_file(path: str | Path) -> dict[str, Any]:
    """An experiment file as tables (variants.py: one with variants)."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).name == RUN_FILE:
            check_text(Path(path), text, CHANGED)
    except OSError as error:
        hint = f"; turnout init {path} writes one to start from" if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"cannot read the experiment file {path}: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    return parse_table(text, str(path))


def parse_table(text: str, where: str) -> dict[str, Any]:
    """A TOML text as tables. `where`: the name of the text in messages."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid TOML: {error}") from error
    if any(isinstance(leaf, int) and leaf.bit_length() > BITS for leaf in leaves(table)):
        raise UserError(f"{where} has a whole number that is too large: it may be at most {2**BITS - 1}")
    return table


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not one."""
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):
        pass  # parse_table explains it
    return parse_table(f"value = {text}", f"{text[:40]}{'...' * (len(text) > 40)}")["value"]


def leaves(value: Any) -> Iterator[Any]:
    """The values in nested tables and lists that are neither."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(item)
    else:
        yield value


def load(path: str | Path, code: Code | None = None) -> Experiment:
    """Read an experiment file that holds one experiment."""
    table = read_file(path)
    if "variants" in table:
        raise UserError(f"{path} has variants, and one experiment has none: turnout run {path} runs them all")
    return from_table(table, code)


def from_table(table: Mapping[str, Any], code: Code | None = None) -> Experiment:
    """An experiment from nested tables.

    >>> from_table({"rounds": 3, "algorithm": {"weighting": "A"}}).algorithm.weighting
    CompleteOnly()
    """
    return build(Experiment, dict(table), "", code)


def open_table(table: Mapping[str, Any]) -> Experiment:
    """The experiment of a run that is opened to read its records or model: sections that cannot be built are `Absent`.

    >>> open_table({"rounds": 3, "model": "<source 0123456789abcdef>"}).rounds
    3
    """
    hints, found = settable(Experiment), {}
    if table.keys() - hints.keys():
        return from_table(table)  # which names them
    for name, value in table.items():
        try:
            found[name] = build(hints[name], value, name)
        except UserError as mistake:
            found[name] = Absent(str(mistake))
    return Experiment(**found)


def build(hint: Any, value: Any, path: str, code: Code | None = None) -> Any:
    """A value of the hinted type from what TOML gave, or an error that says where.

    All dotted paths are looked up before the first is imported. `code`: which are permitted (default: `usual_code`).
    """
    code = code or usual_code()
    if code.known is None and any(isinstance(leaf, str) and ":" in leaf for leaf in leaves(value)):
        _build(hint, value, path, dataclasses.replace(code, names_only=True))
    return _build(hint, value, path, code)


def _build(hint: Any, value: Any, path: str, code: Code) -> Any:
    if isinstance(value, str) and re.fullmatch(OWN_OBJECT, value) and hint is not str:
        raise UserError(
            f"{path} was an object of your own ({value}), which a file can name but not hold: give the experiment in "
            "Python, to.run(experiment, out, resume=True) or to.open_run(folder, experiment=experiment)"
        )
    hinted = parsed(hint)
    match hinted.shape:
        case Shape.ROLE:
            return _build_role(hint, value, path, code)
        case Shape.CHOICE:
            return _build_choice(hint, value, path, code)
        case Shape.LIST if isinstance(value, list | tuple):
            built = tuple(_build(hinted.inside[0], item, f"{path}.{i}", code) for i, item in enumerate(value))
            return OWN if any(item is OWN for item in built) else built
        case Shape.LIST if parsed(hinted.inside[0]).shape is Shape.ROLE:  # one part without a list
            part = _build(hinted.inside[0], value, path, code)
            return OWN if part is OWN else (part,)
        case Shape.TABLE if isinstance(value, dict):
            table = {name: _build(hinted.inside[0], item, f"{path}.{name}", code) for name, item in value.items()}
            return OWN if any(item is OWN for item in table.values()) else table
        case Shape.LITERAL if fits(hint, value):
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


def _build_role(role: Any, value: Any, path: str, code: Code) -> Any:
    if isinstance(value, str):
        value = {"kind": value}
    if value is None or isinstance(value, bool | int | float | list):
        raise UserError(f"{path} must be a kind or a table with one, not {value!r}: {nearest('', kind_names(role))}")
    if not isinstance(value, dict):
        return value  # an object given in Python
    kind = value.get("kind", DEFAULT_KINDS.get(role))
    if not isinstance(kind, str):
        raise UserError(f'{path} needs a kind: {path}.kind = "..." {nearest("", kind_names(role))}')
    maker = find(role, kind, path, code)
    rest = {name: item for name, item in value.items() if name != "kind"}
    if maker is OWN:
        return OWN
    if not is_kind(role, maker):
        return _build_own(role, maker, rest, path, code)
    return _build_part(role, maker, rest, path, code)


def _build_own(role: Any, maker: Any, settings: dict[str, Any], path: str, code: Code) -> Any:
    """A part from a class or function of the user's own; it must be declared to play the role."""
    dotted = f"{maker.__module__}:{maker.__qualname__}"
    is_spec = inspect.isclass(maker) and not issubclass(maker, nn.Module) and hasattr(maker, "build")
    if role is ModelSpec and not is_spec:  # it makes a module, which is checked when the model is built
        arguments = _arguments(maker, settings, path, code)
        return partial(maker, **arguments) if arguments else maker
    if code.known is None and inspect.isclass(maker):
        check_plays(role, maker, dotted, path)
    part = _build_part(role, maker, settings, path, code)
    if code.known is None:
        check_plays(role, part, dotted, path)
    return part


def _build_part(role: Any, maker: Any, settings: dict[str, Any], path: str, code: Code) -> Any:
    is_part = not isinstance(role, type) and not inspect.isclass(maker) and bool(required(maker))
    if is_part and settings:
        raise UserError(
            f"{path}: {maker.__name__} is a function, which has no settings: leave out {', '.join(settings)}"
        )
    return maker if is_part else _build_fields(maker, settings, path, code)


def _build_choice(hint: Any, value: Any, path: str, code: Code) -> Any:
    options = parsed(hint).inside
    wanted = [o for o in options if o is not type(None)]
    none = nothing(hint)  # "none", or false
    if len(wanted) < len(options):
        is_none = isinstance(value, str) and value == none if none else value is False and bool not in wanted
        if value is None or is_none:
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


def _build_fields(maker: Any, value: Any, path: str, code: Code) -> Any:
    if not isinstance(value, dict):
        if isinstance(maker, type) and isinstance(value, maker):
            return value
        raise UserError(f"{path or 'the experiment'} must be a table of settings, not {value!r}")
    arguments = _arguments(maker, value, path, code)
    missing = [name for name in required(maker) if name not in arguments]
    if missing:
        raise UserError(f"{path or 'the experiment'} needs {', '.join(missing)}: add {path}.{missing[0]} = ...")
    with located(path, maker):
        return OWN if any(argument is OWN for argument in arguments.values()) else maker(**arguments)


@contextmanager
def located(path: str, maker: Any) -> Iterator[None]:
    """Name the path of settings in the message of a part that refuses them."""
    try:
        yield
    except UserError as mistake:
        words, own = str(mistake), f"{maker.__name__}."
        if words.startswith(own):
            words = f"{path}.".lstrip(".") + words.removeprefix(own)
        elif path and not words.startswith(path):
            words = f"{path}: {words}"
        raise UserError(words) from mistake


def _arguments(maker: Any, value: dict[str, Any], path: str, code: Code) -> dict[str, Any]:
    """The settings of a class or function, each of the type that it is annotated with."""
    hints, arguments = settable(maker), {}
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        if name not in hints and not takes_any(maker):
            raise UserError(f"unknown setting {here}: {meant(name, maker, path)}")
        arguments[name] = _build(hints.get(name, Any), item, here, code)
    return arguments


def meant(name: str, part: Any, path: str = "") -> str:
    """A hint for a setting that a part (or a kind's default) does not have; `path` leads to the part.

    >>> from turnout.experiment import Algorithm
    >>> meant("lr", Algorithm, "algorithm")
    'did you mean algorithm.local.optimizer.lr or algorithm.server.lr?'
    """
    here = list(settable(part if isinstance(part, type) or callable(part) else type(part)))
    if not here:
        return "it has no settings"
    if isinstance(part, type):
        try:
            part = part()
        except (TypeError, UserError):  # it needs settings
            part = None
    below = dict(_below(part, path))
    wanted = {name, SYNONYMS.get(name, name)}
    places = [place for place, known in below.items() if known in wanted]
    if not places and not near(name, here):
        alike = near(name, set(below.values()))
        places = [place for place, known in below.items() if known in alike[:1]]
    return f"did you mean {' or '.join(places[:2])}?" if places else nearest(name, here)


def _below(part: Any, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """(path, name) of the settings of the parts inside a part, in the order of its fields."""
    for name in settable(type(part)) if dataclasses.is_dataclass(part) and not isinstance(part, type) else ():
        here = f"{path}.{name}".lstrip(".")
        if depth:
            yield here, name
        yield from _below(getattr(part, name), here, depth + 1)
