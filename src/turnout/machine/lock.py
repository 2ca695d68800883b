"""A lock that one process holds at a time, with who holds it; the system releases the lock of a process that is killed.

The lock is the system's (flock) on a file that stays. Where the file system has none (some network folders), the lock
is a second file that only one process can create; what a killed process left of it on this machine is recognised.
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

from turnout.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}  # somebody else has it; any other error: no locks here
ONLY_FILE = ".held"  # the end of the second file's name
PAUSE = 0.05  # seconds between two attempts


@dataclass(frozen=True)
class Holder:
    """The process that has a lock; `started` tells it from a later one with the same number."""

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
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.process} on {self.host}, since {clock} ({self.command})"

    def is_gone(self) -> bool:
        """Whether it ended without a word; of another machine's process nobody here can say."""
        return self.host == socket.gethostname() and _started(self.process) != self.started


class Busy(UserError):
    """Another process has the lock of a folder; `holder` is None where it does not say who it is."""

    def __init__(self, path: Path, holder: Holder | None):
        gone = f"; if that process is gone, delete {path}" if path.name.endswith(ONLY_FILE) else ""
        who = f", {holder}" if holder else ""
        super().__init__(f"another process is running in {path.parent}{who}: wait for it, or stop it first{gone}")


@contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock during the block; after so many seconds of waiting for it, Busy."""
    until = time.monotonic() + wait
    while True:
        try:
            release = _taken(path)
            break
        except Busy:
            if time.monotonic() >= until:
                raise
        time.sleep(PAUSE)
    try:
        yield
    finally:
        release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock; nothing is written, so it can be asked of anybody's folder."""
    if _left_by(path) is not None:
        return True
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
    """Who holds the lock; None where nobody does, or where it does not say."""
    return (_left_by(path) or _read(path)) if is_locked(path) else None


def _taken(path: Path) -> _Release:
    """Take the lock, or Busy; the way to release it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _flocked(handle):
                os.close(handle)
                return _taken_by_file(path)
        except BlockingIOError:
            who = _read(path)
            os.close(handle)
            raise Busy(path, who) from None
        if _is_still(handle, path):
            break
        os.close(handle)  # somebody deleted the file meanwhile: this is the lock of nothing
    os.ftruncate(handle, 0)
    os.write(handle, _written(Holder.this()))
    return _Release(handle, None)


def _flocked(handle: int) -> bool:
    """Whether the system's lock was taken; False where there is none, BlockingIOError where another has it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in BUSY:
            raise BlockingIOError(error.errno, error.strerror) from error
        return False
    return True


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _taken_by_file(path: Path) -> _Release:
    """The lock where only a file can be one: whoever creates it has it."""
    only = path.with_name(path.name + ONLY_FILE)
    if (holder := _left_by(path)) is not None:
        raise Busy(only, holder)
    only.unlink(missing_ok=True)  # of a process of this machine that is gone
    try:
        handle = os.open(only, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise Busy(only, _read(only)) from None
    os.write(handle, _written(Holder.this()))
    os.close(handle)
    return _Release(None, only)


def _left_by(path: Path) -> Holder | None:
    """The living holder of a lock that is a file; None where there is no such file or its process is gone."""
    only = path.with_name(path.name + ONLY_FILE)
    if not only.exists():
        return None
    holder = _read(only) or Holder(0, "an unknown machine", "", only.stat().st_mtime, f"delete {only} if it is gone")
    return None if holder.is_gone() else holder


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _written(holder: Holder) -> bytes:
    return (json.dumps(asdict(holder)) + "\n").encode()


def _started(process: int) -> str:
    """What tells a process from a later one with its number: when it began, since the machine's last start."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state, *rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "gone" if state == "Z" else f"{boot} {rest[18]}"
    except (OSError, IndexError):
        return "gone" if Path("/proc/self").exists() else "unknown"


@dataclass(frozen=True)
class _Release:
    handle: int | None
    file: Path | None

    def __call__(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
        if self.file is not None:
            with suppress(OSError):
                self.file.unlink()
