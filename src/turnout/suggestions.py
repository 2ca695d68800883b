"""Names: the kinds that modules define, what installed packages announce, what a public namespace finds elsewhere.

An unknown name or setting in Python is an error with near names; files and the command line have their own
(running/config/read.py).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from turnout.errors import UserError, near, unknown_setting


class UnknownSetting(UserError, TypeError):
    """An argument that a class does not have; also a TypeError, as Python raises for one."""


def announced(group: str) -> list[EntryPoint]:
    """The entry points of installed packages in a group; nothing of them is loaded.

    The current folder is searched for modules, but a package's description that lies in it does not mean that the user
    has installed the package.
    """
    elsewhere = [path for path in sys.path if path and Path(path).resolve() != Path.cwd()]
    found: dict[str, list[EntryPoint]] = {}
    for package in distributions(path=elsewhere):
        if entries := list(package.entry_points.select(group=group)):
            found.setdefault(package.name, entries)
    return [entry for entries in found.values() for entry in entries]


def kinds_in(place: str, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """The kinds in a module's `KINDS`; for a package, those of all its modules, `base` first.

    >>> list(kinds_in("turnout.parts.optimizers")), list(kinds_in("turnout.parts.substitution"))[0]
    (['sgd', 'adam', 'adamw'], 'unused')
    """
    module = importlib.import_module(place)
    if not hasattr(module, "__path__"):
        return dict(module.KINDS)
    names = sorted(
        (info.name for info in pkgutil.iter_modules(module.__path__)), key=lambda name: (name != "base", name)
    )
    kinds: dict[str, Any] = {}
    for inside in (f"{place}.{name}" for name in names if f"{place}.{name}" not in leave_out):
        for kind, maker in getattr(importlib.import_module(inside), "KINDS", {}).items():
            if kinds.setdefault(kind, maker) is not maker:
                raise ValueError(f"two kinds of {place} are called {kind!r}: {kinds[kind]} and {maker}")
    return kinds


def suggesting(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have."""
    close = near(name, (other for other in known if not other.startswith("_")))
    hint = f": did you mean {' or '.join(map(repr, close))}?" if close else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)


def find_elsewhere(module: ModuleType, called: str, satellites: Mapping[str, str]) -> None:
    """Let a module, a public namespace `called` so, find names that are not its own.

    A package of the same name as the namespace (`turnout.server`) is found through it, and so are kinds of satellites,
    which are imported when they are named.
    """

    def missing(name: str) -> Any:
        if name in satellites:
            return getattr(importlib.import_module(satellites[name].partition(":")[0]), name)
        package = sys.modules.get(called)
        if package not in (None, module) and not name.startswith("__"):
            if name in vars(package):
                return vars(package)[name]
            if importlib.util.find_spec(f"{called}.{name}") is not None:
                return importlib.import_module(f"{called}.{name}")
        raise suggesting(called, name, vars(module))

    vars(module).setdefault("__getattr__", missing)


def suggest_settings(kind: Any) -> None:
    """Let a class suggest near settings for an argument that it does not take."""
    make = vars(kind).get("__init__") if isinstance(kind, type) else None
    if make is None or hasattr(make, "__wrapped__"):
        return
    known = [p for p in inspect.signature(make).parameters.values() if p.kind is not p.VAR_POSITIONAL][1:]
    names = [p.name for p in known]

    @functools.wraps(make)
    def init(self: Any, *given: Any, **named: Any) -> None:
        unknown = [name for name in named if name not in names]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in known):
            raise UnknownSetting(unknown_setting(kind.__name__, unknown[0], names))
        make(self, *given, **named)

    kind.__init__ = init
