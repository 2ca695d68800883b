"""The folder of a run on disk: its name, whether it may be used, its lock, and deleting the run in it."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from turnout.errors import UserError
from turnout.machine.lock import Busy, locked

RUN_FILES = {"experiment.toml", "runs.json", "study.txt", "error.txt"}  # one of them exists from the beginning
PROOFS = {"records.sqlite", "error.txt"}  # of a run that has begun
BEGINNING = {"experiment.toml", "environment.json", "runs.json", "state.json"}  # before a run has begun
WRITTEN = RUN_FILES | {
    "environment.json", "records.sqlite", "records.sqlite-wal", "records.sqlite-shm", "checkpoint.safetensors",
    "turnout.csv", "events.csv", "replay.toml", "names.csv", "report.html", "curves.svg", "profile.json", "data.json",
    "state.json", "tracking.json", "untrained.safetensors", "noise.key",
}  # fmt: skip
FOLDERS = {"clients", "tensorboard", "wandb"}  # with clients' rows, and the files of trackers
DEVICES = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d)(?=\.|$)", re.IGNORECASE)  # names that Windows keeps for itself
NOISE_KEY = "noise.key"  # the secret of a private run: never copied into a message, a report or an export
LOCK_FILE = ".lock"
LOCK_SECONDS = 5.0  # how long to wait for another process to leave a folder


def new_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    base = f"{file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs", unused_name(base, lambda name: Path("runs", name).exists()))


def unused_name(base: str, is_used: Callable[[str], bool], between: str = "-") -> str:
    """A name, or the first of `name-2`, `name-3`, ... that is not used.

    >>> unused_name("a", {"a", "a-2"}.__contains__)
    'a-3'
    """
    return next(name for name in chain([base], (f"{base}{between}{i}" for i in count(2))) if not is_used(name))


def file_name(name: str) -> str:
    """A name that every file system accepts.

    >>> file_name("A, rounds=3"), file_name(".."), file_name("con")
    ('A_rounds=3', 'run', 'con_')
    """
    kept = "".join(ch if ch.isalnum() or ch in "-_.=+" else "_" for ch in name)
    while "__" in kept:
        kept = kept.replace("__", "_")
    kept = kept.strip("._")[:100].rstrip(".") or "run"
    return DEVICES.sub(r"\1_", kept)


def contents(folder: Path) -> list[str]:
    """The names in a folder, sorted, without the lock; empty if there is no folder."""
    return sorted(path.name for path in folder.iterdir() if not is_lock(path)) if folder.is_dir() else []


def is_lock(path: Path) -> bool:
    return path.name.startswith(LOCK_FILE)


def refuse_full(folder: Path, resume: bool, begun: Collection[str] = ()) -> None:
    """Refuse a folder that is not empty, unless it holds a run and `resume` is set.

    `begun`: names that this command makes before the file that lists its runs; it may have been killed in between.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and a run needs a folder: choose another --out")
    there = contents(folder)
    if there and not resume:
        raise UserError(
            f"{folder} is not empty: choose another folder, resume what is in it (--resume; Python: resume=True), or "
            "delete it first (--overwrite; Python: overwrite=True)"
        )
    known = RUN_FILES & {name.removesuffix(".new") for name in there}  # it may have been killed while writing
    if not known and not {*there} <= {*begun}:
        raise UserError(
            f"{folder} holds no run to resume, but {', '.join(there[:3])}: choose another folder, or an empty one"
        )


def make_folder(folder: Path) -> None:
    """Create a folder, and check at once that files can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{folder} cannot be written into ({error.strerror}): choose another --out folder") from error


@contextmanager
def kept_if_used(folder: Path) -> Iterator[None]:
    """Remove a folder that did not exist before, and the parents made for it, if no run has begun in it.

    A run that has begun has records, or the traceback of a crash. An interrupted one can be resumed. Only files that a
    run begins with are deleted; with any other file in it, the folder stays.
    """
    fresh, made = not contents(folder), [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        if fresh and not isinstance(sys.exception(), KeyboardInterrupt) and folder.is_dir():
            with suppress(Busy), locked(folder / LOCK_FILE):  # another command may have begun here meanwhile
                inside = sorted(folder.rglob("*"), reverse=True)
                if not any(path.name in PROOFS for path in inside):
                    for path in (path for path in inside if path.name in BEGINNING or is_lock(path)):
                        path.unlink(missing_ok=True)
                    for path in [*(path for path in inside if path.is_dir()), *made]:
                        with suppress(OSError):  # something else is in it
                            path.rmdir()


@contextmanager
def held(folder: Path, fresh: bool = False) -> Iterator[None]:
    """Lock a folder while this process works in it; the system releases the lock of a killed process.

    With `fresh` the folder is refused if another command has run in it while this one waited for the lock.
    """
    make_folder(folder)
    with locked(folder / LOCK_FILE, LOCK_SECONDS):
        if fresh:
            refuse_full(folder, resume=False)
        yield


def refuse_to_delete(folder: Path) -> None:
    """Refuse to delete a folder that holds no run, or files that no run wrote."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and a run needs a folder: choose another")
    there = contents(folder)
    if there and not RUN_FILES & set(there):
        raise UserError(f"{folder} holds no run, but {', '.join(there[:3])}: overwrite=True deletes runs only")
    for path in folder.rglob("*"):
        name = path.name.removesuffix(".new")
        inside = FOLDERS & set(path.relative_to(folder).parts[:-1])
        if not (path.is_dir() and not path.is_symlink()) and name not in WRITTEN and not inside and not is_lock(path):
            raise UserError(
                f"{folder} also holds {path.relative_to(folder)}, which no run wrote: move it away, or choose another "
                "folder, since overwrite=True deletes all of it"
            )


def delete_run(folder: Path) -> None:
    """Delete the run or runs in a folder that this process holds; refuses while another process works in one."""
    refuse_to_delete(folder)
    for used in {path.parent for path in folder.rglob("experiment.toml")} - {folder}:
        with held(used):
            pass
    for path in [path for path in folder.iterdir() if not is_lock(path)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
