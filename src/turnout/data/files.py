"""The data folder: where files are searched, and how public ones are downloaded and checked."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from turnout.errors import UserError
from turnout.machine.files import cache_dir, replacing
from turnout.machine.terminal import Terminal

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 2**18


@dataclass(frozen=True)
class PublicFile:
    """A file with a public address.

    name       of the file
    address    of its download
    checksum   as published: md5, or sha256, distinguished by the length
    """

    name: str
    address: str
    checksum: str


@dataclass(frozen=True)
class PublicSet:
    """A data set's files.

    title     of the data set
    folders   below the data folder where the files may be; downloads go to the first
    files     the published files
    """

    title: str
    folders: tuple[str, ...]
    files: tuple[PublicFile, ...]

    def names(self) -> str:
        return ", ".join(file.name for file in self.files)


def find_data_dir(explicit: Path | str | None = None) -> Path:
    """The data folder: the one given, else $TURNOUT_DATA, else the user's cache.

    >>> find_data_dir("here").name
    'here'
    """
    if explicit:
        return Path(explicit).expanduser()
    if os.environ.get("TURNOUT_DATA"):
        return Path(os.environ["TURNOUT_DATA"]).expanduser()
    return cache_dir()


def find_path(path: Path | str, data_dir: Path | None) -> Path:
    """A user's own file or folder: the path as written, or below the data folder."""
    tried = [Path(path).expanduser(), find_data_dir(data_dir) / path]
    for candidate in tried:
        if candidate.exists():
            return candidate
    raise UserError(f"there is no {tried[0]} and no {tried[1]}: check the path, or set --data-dir")


def locate(name: str, folders: Sequence[Path]) -> Path | None:
    """The file in the first of these folders that has it; instead of a `.gz` it may be unpacked."""
    names = [name, name.removesuffix(".gz")] if name.endswith(".gz") and ".tar" not in name else [name]
    for folder in folders:
        for candidate in names:
            if (folder / candidate).is_file():
                return folder / candidate
    return None


def obtain(wanted: PublicSet, data_dir: Path | None, mirror: str | None = None) -> list[Path]:
    """The set's files, downloaded if they are missing; `mirror` is another address with the same file names."""
    root = find_data_dir(data_dir)
    folders = [root / folder for folder in wanted.folders]
    found = []
    for file in wanted.files:
        path = locate(file.name, folders)
        try:
            found.append(path or fetch(file, folders[0], mirror))
        except (OSError, http.client.HTTPException, UserError) as error:
            raise UserError(
                f"{wanted.title} is not in {root} (looked in {', '.join(wanted.folders)}) and could not be "
                f"downloaded: {error}. Put {wanted.names()} into {folders[0]}, or point --data-dir or "
                "TURNOUT_DATA to a folder that has them"
            ) from error
    return found


def fetch(file: PublicFile, folder: Path, mirror: str | None = None) -> Path:
    """Download one file. It gets its name only when it is complete and its checksum is right."""
    folder.mkdir(parents=True, exist_ok=True)
    address = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.address
    path = folder / file.name
    hasher = hashlib.new("sha256" if len(file.checksum) == 64 else "md5", usedforsecurity=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with replacing(path, shared=True) as partial:
        with (
            urllib.request.urlopen(address, timeout=TIMEOUT) as reply,
            partial.open("wb") as out,
            Progress(*columns, console=Terminal(stderr=True), transient=True) as progress,
        ):
            bar = progress.add_task(file.name, total=int(reply.headers.get("Content-Length") or 0) or None)
            while chunk := reply.read(CHUNK):
                out.write(chunk)
                hasher.update(chunk)
                progress.update(bar, advance=len(chunk))
        if hasher.hexdigest() != file.checksum:
            found = hasher.hexdigest()
            raise UserError(f"{address} has checksum {found}, not {file.checksum}: damaged or changed")
    return path
