"""Other packages: libraries that only some features need, and what installed packages announce."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

from turnout.errors import UserError


def optional(module: str, what: str, extra: str) -> Any:
    """Import a module that `pip install 'turnout[extra]'` installs; `what` names the feature that needs it.

    >>> optional("no_such_library.part", "reading minds", "minds")
    Traceback (most recent call last):
    turnout.errors.UserError: reading minds needs no_such_library, which is not installed: pip install 'turnout[minds]'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own code
            warnings.simplefilter("ignore", FutureWarning)
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = (error.name or module).partition(".")[0]
        raise UserError(f"{what} needs {name}, which is not installed: pip install 'turnout[{extra}]'") from error
    except (ImportError, OSError) as error:  # a shared library of the system that it needs
        raise UserError(f"{what} needs {module.partition('.')[0]}, which cannot be loaded here: {error}") from error


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


def search_here_last() -> None:
    """Search the current folder for modules after the libraries, so that nothing in it stands in for one."""
    here = str(Path.cwd())
    sys.path[:] = [*(path for path in sys.path if path and str(Path(path).resolve()) != here), here]
