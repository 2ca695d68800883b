"""`turnout check`: whether the files of a run are what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a folder of runs.")]


def check(folder: Folder) -> None:
    """Verify a run's files.

    Everything that a resumed run, a report or an export would read back has a checksum; a damaged file is named, with
    what can be saved. Ends with code 1 if something is damaged.

    \b
    turnout check runs/mine
    """
    from turnout.cli.screen import say
    from turnout.running.checking import checked_folder

    looked, damaged = 0, 0
    for found in checked_folder(folder):
        looked += 1
        if found.wrong is not None:
            damaged += 1
            say(found.wrong, "red", stderr=False)
        elif found.note is not None:
            say(f"{found.path}: {found.note}", "yellow", stderr=False)
    say(f"{folder}: {looked} files looked at, {f'{damaged} damaged' if damaged else 'all whole'}", stderr=False)
    if damaged:
        raise typer.Exit(1)
