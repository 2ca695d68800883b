"""Turnout: federated learning when clients do not all turn up.

Its public names are those of public.py, and every kind of a part that is public here (config/kinds.py). They are loaded
when first used: the command line answers `--help` without waiting for torch. They are found before the packages, so
that a room of the house never shadows a name such as `to.run`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.4.0"

# MKL's small products round by the memory address of their operands unless this is set before the first product: on AMD
# the same client would then round differently in another process. AUTO costs nothing measurable; COMPATIBLE 2.4 times.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from turnout.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        public = importlib.import_module("turnout.public")
        if name in public.__all__:
            return getattr(public, name)
        if importlib.util.find_spec(f"turnout.{name}") is not None:
            return importlib.import_module(f"turnout.{name}")
        kinds = importlib.import_module("turnout.running.config.kinds").public_kinds()
        if name in kinds:
            return kinds[name]
        raise importlib.import_module("turnout.suggestions").suggesting("turnout", name, __dir__())
    raise AttributeError(f"module 'turnout' has no attribute {name!r}")


def __dir__() -> list[str]:
    names = importlib.import_module("turnout.public").__all__
    return sorted({*names, *importlib.import_module("turnout.running.config.kinds").public_kinds()})
