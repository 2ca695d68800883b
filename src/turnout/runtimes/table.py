"""Which runtime runs under which settings."""

from __future__ import annotations

from typing import Any

from turnout.errors import Mistake
from turnout.exchange import Runtime
from turnout.runtimes.inprocess import InProcessRuntime
from turnout.runtimes.settings import InProcess
from turnout.runtimes.setup import Factory, Setup

RUNTIMES: dict[type, Factory] = {InProcess: InProcessRuntime}


def open_runtime(settings: Any, setup: Setup) -> Runtime:
    """The runtime that settings name: one of the table, or what the `open(setup)` of one's own settings makes."""
    if type(settings) in RUNTIMES:
        return RUNTIMES[type(settings)](setup)
    if hasattr(settings, "open"):
        runtime: Runtime = settings.open(setup)
        return runtime
    known = ", ".join(f"turnout.{kind.__name__}()" for kind in RUNTIMES)
    raise Mistake(f"runtime {settings!r} is not known here: use {known}, or settings with a function open(setup)")
