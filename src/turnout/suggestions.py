"""Names in Python: the kinds that modules define, and what a public namespace finds elsewhere.

Files and the command line suggest near names themselves (running/config/read.py); in Python the interpreter does.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

from turnout.errors import near


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
