"""Files that are written in one step, reading what may not be a file, and the user's cache folder.

A reader of such a file sees the old content or the new one, never half of it, also after a kill or a power failure.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnout.errors import UserError


def cache_dir() -> Path:
    """Turnout's folder in the user's cache folder, for downloads and compiled kernels."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "turnout"
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, "no home folder: set HOME or XDG_CACHE_HOME", "~/.cache") from error


def read_whole(path: Path) -> bytes:
    """The content of a file; OSError if it is a folder, a pipe, a device or a socket: one of those may never end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        return file.read()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one step; text as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """Path of a temporary file beside `path`, which replaces `path` when the block ends without an error.

    The content is on disk before the rename, and the rename before this returns. An error removes the temporary file;
    a killed process leaves it, and the next write overwrites it. `shared`: several processes may write the file at
    once (a cache), so each uses a temporary file of its own.
    """
    temporary = path.with_name(f"{path.name}{f'.{os.getpid()}' if shared else ''}.new")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # Windows cannot sync a folder
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_destination(option: str, given: str | Path) -> None:
    """Refuse a file that could not be written: no name, a folder, a missing folder, no permission."""
    path = Path(given).absolute()
    if not str(given) or path.is_dir():
        raise UserError(f"{option} {given}: {'is a folder' if str(given) else 'is empty'}; give the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"{option} {given}: there is no folder {Path(given).parent}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {given}: it cannot be written there; choose another place")
