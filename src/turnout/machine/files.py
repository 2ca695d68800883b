"""Files that are written in one step, and a check that a file can be written at all.

Whoever reads such a file, also after the process was killed or the power failed, finds the old content or the new one,
never half of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnout.errors import UserError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one step; text as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """The path of a temporary file beside `path`; when the block ends without an error, it takes the place of `path`.

    The content is on the disk before the rename, and the rename before this returns. The temporary file is removed
    after an error; a killed process leaves it, and the next write of the same file overwrites it. `shared`: several
    processes may write the file at once (a cache), so each has a temporary file of its own.
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
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Bring a rename to the disk, where the system can do that for a folder (Windows cannot)."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_destination(option: str, given: str | Path) -> None:
    """Refuse a file that could not be written: no name, a folder, a missing folder, no permission.

    For what takes hours to compute, this is asked before the work begins.
    """
    path = Path(given).absolute()
    if not str(given) or path.is_dir():
        raise UserError(f"{option} {given}: {'is a folder' if str(given) else 'is empty'}; give the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"{option} {given}: there is no folder {Path(given).parent}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {given}: it cannot be written there; choose another place")
