"""The memory of this machine: how much is free, and what becomes of what a process has freed."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch


@cache
def keep_freed_memory(megabytes: int = 256) -> bool:
    """Let this process keep up to so much freed memory, instead of returning it to the system after every round.

    A round frees memory that the next one allocates again. With glibc's defaults its pages may be faulted in one
    by one, which for a small model costs as much as its training. False where the C library has no such setting.
    """
    trim, mmap = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD; the second can be 32 MB at most
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return sys.platform == "linux" and bool(mallopt(trim, megabytes << 20)) and bool(mallopt(mmap, 32 << 20))


def give_back_freed_memory() -> bool:
    """Return to the system what this process has freed so far: reading data takes a few times what is kept of it.

    On a GPU too, where other processes would not find it free. False where the C library cannot, or has nothing to
    return.
    """
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError, TypeError):
        return False


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device within its container's limits; None if it cannot be found out."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [value for value in (_available(), _left_in_container()) if value is not None]
    return min(known) if known else None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else -1
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None


def _left_in_container(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The memory that control groups leave: the least of this process's group and those above it; None without a limit.

    Both versions are read. What files have left in memory can be had back, so it does not count as used.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    found: list[int] = []
    for _, controllers, path in (line for line in lines or [["0", "", "/"]] if len(line) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        names = _FIRST_VERSION if controllers else _SECOND_VERSION
        inside = base / path.strip("/")
        for folder in (inside, *(p for p in inside.parents if p.is_relative_to(base))):
            left = _left_in_group(folder, *names)
            found += [] if left is None else [left]
    return min(found) if found else None


_FIRST_VERSION = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND_VERSION = ("memory.max", "memory.current", "inactive_file")
_NO_LIMIT = 1 << 60  # the first version says a number near 2^63


def _left_in_group(folder: Path, limit: str, used: str, files: str) -> int | None:
    try:
        most, now = int((folder / limit).read_text()), int((folder / used).read_text())
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
    if most >= _NO_LIMIT:
        return None
    with suppress(OSError, ValueError, IndexError):
        rows = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
        now -= int(rows.get(files, 0))
    return max(0, most - now)
