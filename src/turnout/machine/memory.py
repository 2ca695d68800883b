"""The memory of this machine: free memory, memory that a process has freed, and copies to a GPU."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_FIRST_VERSION = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")  # of control groups
_SECOND_VERSION = ("memory.max", "memory.current", "inactive_file")
_NO_LIMIT = 1 << 60  # without a limit the first version has a number near 2^63


def to_device(value: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor on a device. A copy from this computer's memory to a GPU is queued, so nothing waits for it."""
    value = value if dtype is None else value.to(dtype)
    if device.type != "cuda" or value.is_cuda:
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


@cache
def keep_freed_memory() -> bool:
    """Let this process keep up to 256 MB of freed memory, instead of returning it to the system after every round.

    With glibc's defaults its pages may be faulted in one by one every round, which for a small model costs as much as
    its training. False where the C library has no such setting.
    """
    trim, mmap = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD; the second can be 32 MB at most
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return sys.platform == "linux" and bool(mallopt(trim, 256 << 20)) and bool(mallopt(mmap, 32 << 20))


def give_back_freed_memory() -> bool:
    """Return freed memory of this process to the system, and of its GPU: reading data takes a few times its size."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError, TypeError):
        return False


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device within its container's limits; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available: int | None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else -1
        available = pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
    known = [value for value in (available, _left_in_container()) if value is not None]
    return min(known) if known else None


def _left_in_container(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The least memory that this process's control group and those above it leave; None without a limit."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    left: list[int] = []
    for _, controllers, path in (line for line in lines or [["0", "", "/"]] if len(line) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        limit, used, files = _FIRST_VERSION if controllers else _SECOND_VERSION
        inside = base / path.strip("/")
        for folder in (inside, *(p for p in inside.parents if p.is_relative_to(base))):
            try:
                most, now = int((folder / limit).read_text()), int((folder / used).read_text())
            except (OSError, ValueError):  # no such file, or the word "max"
                continue
            with suppress(OSError, ValueError, IndexError):
                rows = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
                now -= int(rows.get(files, 0))
            if most < _NO_LIMIT:
                left.append(max(0, most - now))
    return min(left) if left else None
