"""Turnout: federated learning when clients do not all turn up.

The public names are those of public.py. They are loaded when first used: the command line answers `--help` without
waiting for torch. They take precedence over packages of the same name: `to.server` is the namespace of server steps,
not the package `turnout.server`, whose modules it finds too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

__version__ = "0.5.0"

# MKL's small products round by the memory address of their operands unless this is set before the first product: on AMD
# the same client would then round differently in another process. AUTO costs nothing measurable; COMPATIBLE 2.4 times.
os.environ.setdefault("MKL_CBWR", "AUTO")

NAMESAKES = {"scores", "server"}  # packages that share their name with a public namespace


class _Package(ModuleType):
    """This package: importing a package of `NAMESAKES` does not replace the namespace of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in NAMESAKES:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'turnout' has no attribute {name!r}")
    public = importlib.import_module("turnout.public")
    if name in public.__all__:
        return getattr(public, name)
    if importlib.util.find_spec(f"turnout.{name}") is not None:
        return importlib.import_module(f"turnout.{name}")
    raise public.unknown_name(name)


def __dir__() -> list[str]:
    return list(importlib.import_module("turnout.public").__all__)
