"""Turnout: federated learning when clients do not all turn up. Its public names are those of public.py.

They are loaded when first used: the command line answers `--help` without waiting for torch. They are found before the
packages, so that a room of the house never shadows a name such as `to.run`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from turnout.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        public = importlib.import_module("turnout.public")
        if name in public.__all__:
            return getattr(public, name)
        if importlib.util.find_spec(f"turnout.{name}") is not None:
            return importlib.import_module(f"turnout.{name}")
    raise AttributeError(f"module 'turnout' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(importlib.import_module("turnout.public").__all__)
