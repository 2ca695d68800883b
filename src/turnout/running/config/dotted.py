"""Whose code the dotted paths `package.module:Name` of a file may name, and how such a name is looked up.

A file may come from a stranger, and a dotted path in it is code. So it is looked up in two steps. `check` decides
whether a path is permitted, by its text and by where Python would find the module; it imports nothing. `named` imports
what is permitted. Permitted are modules below the current folder, and packages that the user has named: with --allow,
in the configuration file, or by installing a package with an entry point (kinds.py).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import turnout
from turnout.errors import UserError

ALLOW, NO_CODE = "TURNOUT_ALLOW", "TURNOUT_NO_CODE"  # --allow and --no-code, for the processes that a command starts
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages, which may lie below the current folder too
OWN = object()  # stands for a user's own part while only names are looked up


@dataclass(frozen=True)
class Code:
    """Code that files may name.

    allow       top packages, by name
    below       modules below this folder; None: no code at all, except the packages
    names_only  whether to look names up without importing anything: each then stands for `OWN`
    known       only these classes and functions, by dotted path: those of an existing experiment
    """

    allow: frozenset[str] = frozenset()
    below: Path | None = None
    names_only: bool = False
    known: Mapping[str, Any] | None = None

    def check(self, dotted: str, path: str) -> None:
        """Refuse a dotted path, at the setting `path`, that is not permitted; imports nothing."""
        module, _, name = dotted.partition(":")
        if not all(word.isidentifier() for word in (*module.split("."), name)):
            raise UserError(f"{path}: {dotted!r} is not a path to code: write it as package.module:Name")
        top, beside = module.partition(".")[0], module.removesuffix(".py")
        if module != beside and _file_of(module) is None:
            raise UserError(f"{path}: {dotted!r} names a file: write the module, '{beside}:{name}', without .py")
        if top in self.allow:
            return
        if self.below is None:
            raise UserError(
                f"{path}: {dotted} is code, and --no-code refuses all code that a file names: leave --no-code out if "
                "you trust the file"
            )
        file = _file_of(module)
        if module != "__main__" and not _is_below(self.below, file):
            if file is None and _file_of(top) is None and top not in sys.stdlib_module_names:
                raise UserError(
                    f"{path}: cannot find the module {module!r} of {dotted}: it must lie below the current folder, "
                    f"{self.below}: run the command in the folder that holds {module.replace('.', '/')}.py, or "
                    f"put that folder on PYTHONPATH and add --allow {top}"
                )
            raise UserError(
                f"{path}: {dotted} is code of the package {top!r}, which a file may not name by itself: if you trust "
                f'it, add --allow {top} (in Python, allow=["{top}"]) or write allow = ["{top}"] into '
                f"{configuration_file()}"
            )

    def named(self, dotted: str, path: str) -> Any:
        """The function or class that a permitted path names; nothing of it has been called."""
        if self.known is not None:
            if dotted not in self.known:
                raise UserError(f"{path}: {dotted} is not a part of this experiment")
            return self.known[dotted]
        self.check(dotted, path)
        if self.names_only:
            return OWN
        thing = _imported(dotted, path)
        if not callable(thing) or not hasattr(thing, "__qualname__"):
            raise UserError(f"{path}: {dotted} is a {type(thing).__name__}: give a function or a class")
        self.check(f"{thing.__module__}:{thing.__name__}", path)  # the module may have it from another package
        return thing


def parts_of(experiment: Any) -> Code:
    """The functions and classes of an existing experiment: nothing else is called, nothing is imported."""
    return Code(known={f"{part.__module__}:{part.__qualname__}": part for part in _makers(experiment)})


def usual_code() -> Code:
    """What the user permits: modules below the current folder, --allow and the configuration file; or --no-code."""
    if os.environ.get(NO_CODE):
        return Code()
    return Code(frozenset([*_configured(), *filter(None, os.environ.get(ALLOW, "").split(","))]), Path.cwd())


@contextmanager
def allowing(packages: Sequence[str] = (), no_code: bool = False) -> Iterator[None]:
    """Permit more packages, or no code at all, in this process and in those it starts."""
    if packages and no_code:
        raise UserError("--allow permits code and --no-code refuses it: leave one of them out")
    _check_packages(packages, "--allow")
    before = {name: os.environ.get(name) for name in (ALLOW, NO_CODE)}
    if packages:
        os.environ[ALLOW] = ",".join(filter(None, [before[ALLOW] or "", *packages]))
    if no_code:
        os.environ[NO_CODE] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def configuration_file() -> Path:
    return Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config")) / "turnout" / "config.toml"


def _configured() -> list[str]:
    path = configuration_file()
    if not path.is_absolute():  # there is no home folder
        return []
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    allow = table.pop("allow", [])
    if table or not isinstance(allow, list) or not all(isinstance(package, str) for package in allow):
        raise UserError(f'{path} holds a list of packages, allow = ["my_package"], and nothing else')
    _check_packages(allow, str(path))
    return allow


def _check_packages(packages: Sequence[str], where: str) -> None:
    for package in packages:
        if not package.isidentifier():
            raise UserError(f"{where}: {package!r} is not the name of a top package, such as my_package")


def _file_of(module: str) -> Path | None:
    """The file that Python would load a module from, without importing its packages; None if there is none."""
    if module in sys.modules:
        known = getattr(sys.modules[module], "__file__", None)
        return Path(known) if isinstance(known, str) else None
    folders, file = list(sys.path), None
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    for name in module.split("."):
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            importlib.invalidate_caches()  # the file may have been written just now
            spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        if spec.origin is None:  # a folder without __init__.py
            file, folders = None, [os.path.join(folder or ".", name) for folder in folders]
        else:
            file, folders = Path(spec.origin), list(spec.submodule_search_locations or ())
    return file


def _is_below(folder: Path, file: Path | None) -> bool:
    """Whether a module lies below a folder and is the user's own: neither installed, nor of Python, nor of Turnout."""
    if file is None:
        return False
    file, others = file.resolve(), (Path(os.__file__).parent, Path(turnout.__file__).parent)
    if INSTALLED & {*file.parts} or any(file.is_relative_to(other.resolve()) for other in others):
        return False
    return file.is_relative_to(folder.resolve())


def _imported(dotted: str, path: str) -> Any:
    module, _, name = dotted.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(f"{path}: cannot import {module!r} ({error}): is its folder on PYTHONPATH?") from error
    except AttributeError as error:
        raise UserError(f"{path}: module {module!r} has nothing called {name!r}") from error
    except SyntaxError as error:
        raise UserError(f"{path}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:  # any failure of a user's module
        raise UserError(f"{path}: importing {module!r} failed: {type(error).__name__}: {error}") from error


def _makers(thing: Any) -> Iterator[Any]:
    """The classes and functions that an object is made of, at any depth."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield type(thing)
        for field in dataclasses.fields(thing):
            yield from _makers(getattr(thing, field.name, None))
    elif isinstance(thing, functools.partial):
        yield thing.func
        yield from _makers(thing.keywords)
    elif isinstance(thing, Mapping | list | tuple | set | frozenset):
        for item in thing.values() if isinstance(thing, Mapping) else thing:
            yield from _makers(item)
    elif callable(thing):
        yield thing if hasattr(thing, "__qualname__") else type(thing)
