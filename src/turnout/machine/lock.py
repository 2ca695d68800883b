"""A lock that one process holds at a time, and a record of that process.

The lock is `filelock`'s: the system's lock on a file that stays, which the system releases when its process is killed.
On a file system without locks (some network folders), and on Windows, it is a marker file that only one process can
create, and that `filelock` removes when its process is gone. The record of the holder is the content of the file that
stays.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from turnout.errors import UserError
from turnout.machine.files import read_whole

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}  # the file system has none
BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
MARKER = ".held"  # the end of the marker's name
PAUSE = 0.05  # seconds between two attempts


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    process    its number
    host       the machine it runs on
    since      when it took the lock, in seconds of the epoch
    command    how it was called
    """

    process: int
    host: str
    since: float
    command: str

    @classmethod
    def this(cls) -> Holder:
        words = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else []
        return cls(os.getpid(), socket.gethostname(), time.time(), " ".join(words)[:200])

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.process} on {self.host}, since {since} ({self.command})"


class Busy(UserError):
    """Another process holds the lock of a folder; `holder` is None if there is no record of it."""

    def __init__(self, path: Path, holder: Holder | None):
        gone = f"; if that process is gone, delete {path}" if path.name.endswith(MARKER) else ""
        who = f", {holder}" if holder else ""
        super().__init__(f"another process is running in {path.parent}{who}: wait for it, or stop it first{gone}")


@contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock during the block; raises Busy after waiting for it for so many seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _acquire(path, wait)
    try:
        path.write_text(json.dumps(asdict(Holder.this())) + "\n")
        yield
    finally:
        lock.release()


def _acquire(path: Path, wait: float) -> BaseFileLock:
    if fcntl is not None:
        lock = FileLock(path, fallback_to_soft=False)
        try:
            lock.acquire(wait, poll_interval=PAUSE)
            return lock
        except Timeout:
            raise Busy(path, _recorded(path)) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
    soft = SoftFileLock(_marker(path))
    try:
        soft.acquire(max(wait, 2 * PAUSE), poll_interval=PAUSE)  # a marker that was left behind goes in a first attempt
        return soft
    except Timeout:
        raise Busy(_marker(path), _recorded(path)) from None


@lru_cache
def has_locks(folder: Path) -> bool:
    """Whether the file system of a folder that can be written has the locks that SQLite needs."""
    if fcntl is None:
        return True
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # another error is for the caller, when it writes
        return error.errno not in NO_LOCKS
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Any folder can be asked: only a marker that was left behind is removed."""
    if _marker(path).exists():
        try:
            SoftFileLock(_marker(path)).acquire(2 * PAUSE, poll_interval=PAUSE).lock.release()
        except (OSError, Timeout):
            return True
        return False
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would wait
    except OSError:
        return False
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in BUSY
    finally:
        os.close(handle)


def _marker(path: Path) -> Path:
    return path.with_name(path.name + MARKER)


def _recorded(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(read_whole(path)))
    except (OSError, ValueError, TypeError):
        return None
