"""Type hints: what a setting may be, in words, and whether a value fits."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from turnout.running.config.kinds import KINDS

PLAIN: dict[Any, Any] = {
    int: numbers.Integral,
    float: numbers.Real,
    str: str,
    bool: bool,
    Path: (str, Path),
    type(None): type(None),
}
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MANY = 1000  # a longer list is data, not settings


class Shape(Enum):
    """What a hint says a value is."""

    ROLE = auto()  # a part, chosen by its kind
    CHOICE = auto()  # one of several hints
    LIST = auto()
    TABLE = auto()  # values by name
    SETTINGS = auto()  # a dataclass with fields of its own
    FUNCTION = auto()
    LITERAL = auto()  # one of a few values
    PLAIN = auto()  # a number, a text, a path, true or false, nothing
    OTHER = auto()  # a class that a file cannot hold


@dataclass(frozen=True)
class Hint:
    """A parsed type hint.

    shape   what a value is
    inside  the hints inside it: options of a choice, items, a table's values; for a literal the values themselves
    """

    shape: Shape
    inside: tuple[Any, ...] = ()


def parsed(hint: Any) -> Hint:
    """Parse a type hint.

    >>> parsed(int | None).shape.name, parsed(tuple[str, ...]).inside
    ('CHOICE', (<class 'str'>,))
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in KINDS:
        return Hint(Shape.ROLE)
    if origin in (typing.Union, types.UnionType):
        return Hint(Shape.CHOICE, arguments)
    if origin in (tuple, list, Sequence):
        return Hint(Shape.LIST, arguments[:1] if arguments[1:] == (Ellipsis,) else arguments)
    if origin in (dict, Mapping):
        return Hint(Shape.TABLE, arguments[1:])
    if origin is typing.Literal:
        return Hint(Shape.LITERAL, arguments)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return Hint(Shape.SETTINGS)
    if origin is Callable or hint is Callable:
        return Hint(Shape.FUNCTION)
    return Hint(Shape.PLAIN if hint in PLAIN else Shape.OTHER)


def fits(hint: Any, value: Any) -> bool:
    """Whether a value made in Python fits a hint; objects of other classes always fit.

    >>> fits(float | None, 1), fits(int, 1.0), fits(int, True), fits(tuple[int, ...], (1, "2"))
    (True, False, False, False)
    """
    hinted = parsed(hint)
    match hinted.shape:
        case Shape.CHOICE:
            return any(fits(option, value) for option in hinted.inside)
        case Shape.PLAIN:
            return isinstance(value, PLAIN[hint]) and (hint is bool or not isinstance(value, bool))
        case Shape.LIST:
            if not isinstance(value, tuple | list):  # an array is a list too
                return not isinstance(value, str | numbers.Number)
            inside = hinted.inside
            return len(value) > MANY or len(inside) != 1 or all(fits(inside[0], item) for item in value)
        case Shape.TABLE:
            return isinstance(value, Mapping)
        case Shape.LITERAL:
            return any(type(option) is type(value) and option == value for option in hinted.inside)
        case Shape.ROLE if isinstance(hint, type):
            return not isinstance(value, str | numbers.Number | type(None))
        case Shape.ROLE | Shape.FUNCTION:  # a role that is not a class is a function
            return callable(value)
        case Shape.SETTINGS:
            return isinstance(value, hint)
    return True


def in_words(hint: Any) -> str:
    """A type in words.

    >>> in_words(int | None)
    'a whole number or None'
    """
    hinted = parsed(hint)
    match hinted.shape:
        case Shape.CHOICE:
            return " or ".join(dict.fromkeys(in_words(option) for option in hinted.inside))
        case Shape.ROLE if isinstance(hint, type):
            return f"an object such as {example(hint)}"
        case Shape.ROLE | Shape.FUNCTION:
            return 'a function, as its path "package.module:name"'
        case Shape.LIST:
            return "a list"
        case Shape.LITERAL:
            return " or ".join(map(repr, hinted.inside))
        case Shape.TABLE:
            return "a table"
    return "None" if hint is type(None) else WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def example(role: Any) -> str:
    """An example of an object that plays a role, as Python code."""
    return f"{next(iter(KINDS[role].values())).__name__}(...)"


def role_in(hint: Any) -> Any:
    """The role in a hint, through optionals and lists; None if there is none."""
    hinted = parsed(hint)
    if hinted.shape is Shape.ROLE:
        return hint
    if hinted.shape is Shape.LITERAL:
        return None
    return next((role for inside in hinted.inside if (role := role_in(inside)) is not None), None)


def nothing(hint: Any) -> str | bool:
    """How a file writes that an optional setting is None: "none", or false if "none" could be a text.

    >>> nothing(int | None), nothing(str | None)
    ('none', False)
    """
    for option in (hint, *parsed(hint).inside):
        hinted = parsed(option)
        if option is str or (hinted.shape is Shape.LITERAL and "none" in hinted.inside):
            return False
    return "none"


def settable(maker: Any) -> dict[str, Any]:
    """The settings of a class or function with their type hints."""
    if isinstance(maker, type) and dataclasses.is_dataclass(maker):
        hints = _hints(maker)
        return {f.name: hints[f.name] for f in dataclasses.fields(maker) if f.init}
    function = maker.__init__ if inspect.isclass(maker) else maker
    hints = _hints(function)
    return {p.name: hints.get(p.name, Any) for p in _parameters(maker) if p.kind not in VARIADIC}


def takes_any(maker: Any) -> bool:
    """Whether a class or function takes keywords of any name."""
    return not dataclasses.is_dataclass(maker) and any(p.kind is p.VAR_KEYWORD for p in _parameters(maker))


def _parameters(maker: Any) -> list[inspect.Parameter]:
    """The parameters of a class or function; keywords of any name if it has no signature."""
    try:
        return list(inspect.signature(maker).parameters.values())
    except ValueError:
        return [inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)]


@functools.lru_cache(maxsize=1024)
def _hints(thing: Any) -> dict[str, Any]:
    """The type hints of a class or function; a name that only type checkers import becomes Any."""
    try:
        return typing.get_type_hints(thing)
    except NameError:
        owners = reversed(inspect.getmro(thing)) if inspect.isclass(thing) else [thing]
        return {name: hint for owner in owners for name, hint in _one_by_one(owner).items()}


def _one_by_one(owner: Any) -> dict[str, Any]:
    names = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    hints: dict[str, Any] = {}
    for name, hint in vars(owner).get("__annotations__", getattr(owner, "__annotations__", {})).items():
        alone = type("Alone", (), {"__annotations__": {name: hint}})  # a class, where a ClassVar may be
        try:
            hints |= typing.get_type_hints(alone, globalns=names)
        except NameError:
            hints[name] = Any
    return hints


def required(maker: Any) -> list[str]:
    """The settings that have no default."""
    return [p.name for p in _parameters(maker) if p.default is p.empty and p.kind not in VARIADIC]
