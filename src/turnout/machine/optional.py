"""Libraries that only some features need, imported when they are used."""

from __future__ import annotations

import importlib
import warnings
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
