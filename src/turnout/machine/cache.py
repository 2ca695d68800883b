"""Where things are kept that can be had again: downloads, compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder, of which Turnout has a part."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "turnout"
