"""C beside the Python: compiled once for the machine, kept in the user's cache folder, and never needed.

Without a compiler (cc, gcc or clang, or what $CC says), or where the folder cannot be written, there is no library and
callers do the same with torch. Calls leave the interpreter's lock to other threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from turnout.machine.cache import cache_dir
from turnout.machine.files import replacing

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")

pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def at(value: Tensor) -> int:
    """A tensor as a C function takes it."""
    return value.data_ptr()


@lru_cache
def function(source: Path, name: str, arguments: tuple[Any, ...], defines: tuple[str, ...] = ()) -> Any:
    """A function that gives a whole number; None where it cannot be had."""
    path = compiled(source, defines)
    if path is None:
        return None
    try:
        found = ctypes.CDLL(str(path))[name]
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = list(arguments), whole
    return found


def compiled(source: Path, defines: tuple[str, ...] = ()) -> Path | None:
    """The library for this machine, from the cache folder or made now; it takes its place in one step."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.name != "posix":
        return None
    flags = [*FLAGS, *(f"-D{define}" for define in defines)]
    about = repr((source.read_bytes(), compiler, flags, _processor())).encode()
    try:
        path = cache_dir() / "kernels" / f"{source.stem}-{hashlib.blake2b(about, digest_size=12).hexdigest()}.so"
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, shared=True) as made:
            command = [compiler, *flags, str(source), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: nobody knows the home folder
        return None
    return path


def _processor() -> str:
    """What instructions there are: a cache folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
