"""Suggestions for misspelt names in Python; files and the command line have their own (config/catalogue.py).

`public.py` installs them for all public names: an unknown name of a namespace and an unknown argument of a class then
raise an error with near names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

from turnout.errors import UnknownSetting, near, unknown_setting


def kinds_in(place: str, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """The kinds in a module's `KINDS`; for a package, those of all its modules, `base` first.

    >>> list(kinds_in("turnout.parts.optimizers")), list(kinds_in("turnout.parts.substitution"))[0]
    (['sgd', 'adam'], 'unused')
    """
    module = importlib.import_module(place)
    if not hasattr(module, "__path__"):
        return dict(module.KINDS)
    names = sorted(
        (info.name for info in pkgutil.iter_modules(module.__path__)), key=lambda name: (name != "base", name)
    )
    found: dict[str, Any] = {}
    for inside in (f"{place}.{name}" for name in names if f"{place}.{name}" not in leave_out):
        for kind, maker in getattr(importlib.import_module(inside), "KINDS", {}).items():
            if found.setdefault(kind, maker) is not maker:
                raise ValueError(f"two kinds of {place} are called {kind!r}: {found[kind]} and {maker}")
    return found


def suggesting(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have."""
    close = near(name, (other for other in known if not other.startswith("_")))
    hint = f": did you mean {' or '.join(map(repr, close))}?" if close else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)


def suggest_names(module: ModuleType, called: str, satellites: Mapping[str, str]) -> None:
    """Let a module, a public namespace `called` so, suggest near names for one that it does not have.

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
    made = vars(kind).get("__init__") if isinstance(kind, type) else None
    if made is None or hasattr(made, "__wrapped__"):
        return
    parameters = list(inspect.signature(made).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]

    @functools.wraps(made)
    def init(self: Any, *given: Any, **named: Any) -> None:
        for name in named:
            if name not in known:
                raise UnknownSetting(unknown_setting(kind.__name__, name, known))
        made(self, *given, **named)

    kind.__init__ = init
