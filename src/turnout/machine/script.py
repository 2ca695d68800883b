"""Processes that do not run the user's script again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def script_left_alone() -> Iterator[None]:
    """While a process is started: multiprocessing does not find the script, so the new process does not execute it.

    A script then needs no `if __name__ == "__main__"` around it. What the script itself defines cannot be pickled
    meanwhile, because the new process would not have it.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
