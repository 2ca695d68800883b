"""A lock that one process holds at a time, and a record of that process.

The lock is `filelock`'s: the system's lock on a file that stays, which the system releases when its process is killed.
On a file system without locks (some network folders) it is a marker file that only one process can create. The record
of the holder (`filelock` keeps none of its command or start) is a file beside it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from turnout.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}  # the file system has none
BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
MARKER, RECORD = ".held", ".holder"  # ends of the names of the two files beside the lock's
PAUSE = 0.05  # seconds between two attempts


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    process    its number
    host       the machine it runs on
    started    when it started; tells it from a later process with the same number
    since      when it took the lock, in seconds of the epoch
    command    how it was called
    """

    process: int
    host: str
    started: str
    since: float
    command: str

    @classmethod
    def this(cls) -> Holder:
        words = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else []
        me = os.getpid()
        return cls(me, socket.gethostname(), _started(me), time.time(), " ".join(words)[:200])

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.process} on {self.host}, since {since} ({self.command})"

    def is_gone(self) -> bool:
        """Whether the process has ended; False for a process of another machine, which cannot be checked."""
        return self.host == socket.gethostname() and _started(self.process) != self.started


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
    lock: BaseFileLock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(wait, poll_interval=PAUSE)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            lock = SoftFileLock(_beside(path, MARKER))
            if (holder := _recorded(path)) is not None and holder.is_gone():
                _beside(path, MARKER).unlink(missing_ok=True)
            lock.acquire(wait, poll_interval=PAUSE)
    except Timeout:
        raise Busy(Path(lock.lock_file), _recorded(path)) from None
    record = _beside(path, RECORD)
    try:
        record.write_text(json.dumps(asdict(Holder.this())) + "\n")
        yield
    finally:
        record.unlink(missing_ok=True)
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Nothing is written, so any folder can be asked."""
    holder = _recorded(path)
    if _beside(path, MARKER).exists() or fcntl is None:
        return _beside(path, MARKER).exists() if holder is None else not holder.is_gone()
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in BUSY
    finally:
        os.close(handle)


def holder_of(path: Path) -> Holder | None:
    """The process that holds the lock; None if it is free, or if there is no record of the holder."""
    return _recorded(path) if is_locked(path) else None


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _recorded(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(_beside(path, RECORD).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _started(process: int) -> str:
    """When a process started, counted from the machine's last start: it tells apart processes of the same number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state, *rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "gone" if state == "Z" else f"{boot} {rest[18]}"
    except (OSError, IndexError):
        return "gone" if Path("/proc/self").exists() else "unknown"
