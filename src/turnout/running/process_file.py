"""Which process works in a folder, so that it can be asked to stop: `process.json`, beside the lock that it holds."""

from __future__ import annotations

import json
import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnout.errors import Mistake
from turnout.machine.files import write_whole
from turnout.running.state import is_held

FILE = "process.json"


@contextmanager
def announced(folder: Path) -> Iterator[None]:
    """While a process works in a folder whose lock it holds, the folder says which one it is."""
    write_whole(folder / FILE, json.dumps({"pid": os.getpid(), "host": platform.node()}) + "\n")
    try:
        yield
    finally:
        (folder / FILE).unlink(missing_ok=True)


def interrupt(folder: Path) -> None:
    """Ask the process that works in a folder to stop, as Ctrl-C does: its checkpoint stays, and it can be resumed."""
    if not is_held(folder):  # then whatever the file says is of a process that is gone
        raise Mistake(f"nothing is running in {folder}")
    try:
        said = json.loads((folder / FILE).read_text(encoding="utf-8"))
        pid, host = int(said["pid"]), str(said["host"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Mistake(
            f"{folder} does not say which process runs in it ({error}): stop it where it was started"
        ) from error
    if host != platform.node():
        raise Mistake(f"{folder} is used by a process on {host}: stop it there")
    os.kill(pid, signal.SIGINT)
