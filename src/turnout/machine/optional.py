"""Libraries that only some features need: loaded when they are used, with a sentence where one is not there."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from turnout.errors import UserError


def optional(module: str, what: str, extra: str) -> Any:
    """A module of a library that `pip install 'turnout[extra]'` brings.

    >>> optional("no_such_library.part", "reading minds", "minds")
    Traceback (most recent call last):
    turnout.errors.UserError: reading minds needs no_such_library, which is not here: pip install 'turnout[minds]'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own code
            warnings.simplefilter("ignore", FutureWarning)
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0] if error.name is None else error.name.partition(".")[0]
        raise UserError(f"{what} needs {name}, which is not here: pip install 'turnout[{extra}]'") from error
    except (ImportError, OSError) as error:  # a shared library of the system that it needs
        raise UserError(f"{what} needs {module.partition('.')[0]}, which cannot be loaded here: {error}") from error
