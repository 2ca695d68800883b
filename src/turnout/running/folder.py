"""The folder of a run on disk: its name, whether it may be used, and a lock that keeps it to one process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnout.errors import UserError
from turnout.machine.lock import Busy, locked

RUN_FILES = {"experiment.toml", "runs.json", "study.txt", "error.txt"}  # one of them is there from the beginning
HAPPENED = {"records.sqlite", "error.txt"}
BEGINNING = {"experiment.toml", "environment.json", "runs.json", "state.json"}  # before anything has happened
LOCK_FILE = ".lock"
LOCK_SECONDS = 5.0  # how long to wait for another process to leave a folder


def new_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    base = Path("runs") / f"{file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, i = base, 2
    while path.exists():
        path, i = base.with_name(f"{base.name}-{i}"), i + 1
    return path


def file_name(name: str) -> str:
    """A name that every file system takes.

    >>> file_name("A, rounds=3"), file_name("..")
    ('A_rounds=3', 'run')
    """
    kept = "".join(ch if ch.isalnum() or ch in "-_.=+" else "_" for ch in name)
    while "__" in kept:
        kept = kept.replace("__", "_")
    return kept.strip("._")[:100] or "run"


def contents(folder: Path) -> list[str]:
    """The names in a folder, sorted; nothing where there is no folder. The lock, whose file stays, does not count."""
    return sorted(path.name for path in folder.iterdir() if not is_lock(path)) if folder.is_dir() else []


def is_lock(path: Path) -> bool:
    return path.name.startswith(LOCK_FILE)


def refuse_full(folder: Path, resume: bool, begun: Collection[str] = ()) -> None:
    """Refuse a folder that holds something, unless it is a run and `resume` says to go on with it.

    `begun`: names of what this command makes before the file that names its runs; it may have been killed between.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and a run needs a folder: choose another --out")
    there = contents(folder)
    if there and not resume:
        raise UserError(
            f"{folder} is not empty: choose another folder, go on with what is in it (--resume; Python: resume=True), "
            "or delete it first (--overwrite; Python: overwrite=True)"
        )
    known = RUN_FILES & {name.removesuffix(".new") for name in there}  # it may have been killed while writing
    if not known and not {*there} <= {*begun}:
        raise UserError(
            f"{folder} holds no run to go on with, but {', '.join(there[:3])}: choose another folder, or an empty one"
        )


def make_folder(folder: Path) -> None:
    """Create a folder, and find out at once whether files can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{folder} cannot be written into ({error.strerror}): choose another --out folder") from error


@contextmanager
def kept_if_used(folder: Path) -> Iterator[None]:
    """Remove a folder that was not there before, and what was made around it, if nothing has happened in it.

    What has happened is in records, or in the traceback of a crash. One that was interrupted can be resumed. Only files
    that a run begins with are deleted; whatever else has come into the folder stays, and the folder with it.
    """
    fresh, made = not contents(folder), [path for path in (folder, *folder.parents) if not path.exists()]
    interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if fresh and not interrupted and folder.is_dir():
            with suppress(Busy), locked(folder / LOCK_FILE):  # another command may have begun here meanwhile
                if not any(path.name in HAPPENED for path in folder.rglob("*")):
                    _remove(folder, made)


def _remove(folder: Path, made: list[Path]) -> None:
    """Delete the files that a run begins with, and then the folders that are empty: those inside, and those made."""
    inside = sorted(folder.rglob("*"), reverse=True)
    for path in inside:
        if (path.name in BEGINNING or is_lock(path)) and not path.is_dir():
            path.unlink(missing_ok=True)
    for path in [path for path in inside if path.is_dir()] + made:
        with suppress(OSError):  # something else is in it
            path.rmdir()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder while this process makes it and works in it; the system releases the lock of a killed process."""
    make_folder(folder)
    with locked(folder / LOCK_FILE, LOCK_SECONDS):
        yield
