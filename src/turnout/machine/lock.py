"""A lock that one process holds at a time, and a record of that process.

The lock is `filelock`'s: the system's lock on a file that stays, which the system releases when its process is killed.
On a file system without locks (some network folders), and on Windows, it is a marker file that only one process can
create. The record of the holder is the content of the file that stays.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
MARKER = ".held"  # the end of the marker's name
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
    soft, holder = SoftFileLock(_marker(path)), _recorded(path)
    with suppress(FileNotFoundError):
        written_by = _marker(path).read_text().partition("\n")[0]  # not by a later process, whose record is to come
        if holder is not None and holder.is_gone() and written_by == str(holder.process):
            _marker(path).unlink()
    try:
        soft.acquire(wait, poll_interval=PAUSE)
        return soft
    except Timeout:
        raise Busy(_marker(path), _recorded(path)) from None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Nothing is written, so any folder can be asked."""
    if _marker(path).exists():
        holder = _recorded(path)
        return holder is None or not holder.is_gone()
    try:
        handle = os.open(path, os.O_RDONLY)
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


def holder_of(path: Path) -> Holder | None:
    """The process that holds the lock; None if it is free, or if there is no record of the holder."""
    return _recorded(path) if is_locked(path) else None


def _marker(path: Path) -> Path:
    return path.with_name(path.name + MARKER)


def _recorded(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_bytes()))
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
