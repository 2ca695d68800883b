"""A process that does not outlive the one that started it, however that one ended."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
from multiprocessing.connection import wait

KILLED_BY_PARENT = 1


def end_with_parent() -> None:
    """From now on this process ends at once when its parent does, also if the parent is killed.

    The parent holds one end of a pipe. Where the kernel can watch the other end (Linux), it kills this process when the
    pipe closes, whatever the process is doing and even if it is stopped; elsewhere a thread waits for that.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if not _watched_by_kernel(parent.sentinel):
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watched_by_kernel(pipe: int) -> bool:
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        return False
    if select.select([pipe], [], [], 0)[0]:  # it was gone before
        os._exit(KILLED_BY_PARENT)
    return True


def _watch(pipe: int) -> None:
    wait([pipe])
    os._exit(KILLED_BY_PARENT)
