"""Asking the process that works in a folder to stop, as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from turnout.errors import UserError
from turnout.machine.lock import holder_of
from turnout.running.folder import LOCK_FILE
from turnout.running.state import is_held


def interrupt(folder: Path) -> None:
    """Ask the process that holds a folder's lock to stop: its checkpoint stays, and it can be resumed."""
    if not is_held(folder):
        raise UserError(f"nothing is running in {folder}")
    holder = holder_of(folder / LOCK_FILE)
    if holder is None:
        raise UserError(f"{folder} does not say which process runs in it: stop it where it was started")
    if holder.host != socket.gethostname():
        raise UserError(f"{folder} is used by {holder}: stop it there")
    os.kill(holder.process, signal.SIGINT)
