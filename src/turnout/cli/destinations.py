"""Whether a file can be written, found out before hours of work."""

from __future__ import annotations

import os
from pathlib import Path

from turnout.errors import Mistake


def check_destination(option: str, given: str | Path) -> None:
    """Refuse a file that could not be written: no name, a folder, one in a folder that is not there or is not ours."""
    path = Path(given).absolute()
    if not str(given) or path.is_dir():
        raise Mistake(f"{option} {given}: {'is a folder' if str(given) else 'is empty'}; give the name of a file")
    if not path.parent.is_dir():
        raise Mistake(f"{option} {given}: there is no folder {Path(given).parent}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Mistake(f"{option} {given}: it cannot be written there; choose another place")
