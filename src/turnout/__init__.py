"""Turnout: federated learning when clients do not all turn up. Its public names are those of public.py.

They are loaded when first used: the command line answers `--help` without waiting for torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from turnout.version import __version__ as __version__

if TYPE_CHECKING:
    from turnout.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        if importlib.util.find_spec(f"turnout.{name}") is not None:
            return importlib.import_module(f"turnout.{name}")
        public = importlib.import_module("turnout.public")
        if hasattr(public, name):
            return getattr(public, name)
    raise AttributeError(f"module 'turnout' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(importlib.import_module("turnout.public").__all__)
