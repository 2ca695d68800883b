"""The cache folder: downloads, compiled kernels and other files that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Turnout's folder in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "turnout"
