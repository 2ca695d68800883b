"""The memory of this machine: how much is free, and keeping what is freed for the next round."""

from __future__ import annotations

import ctypes
import os
import sys
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


def _left_in_container() -> int | None:
    """The memory limit of the control group less what it uses; None without a limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (folder / "memory.max").read_text(), (folder / "memory.current").read_text()
        return int(limit) - int(used)
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
