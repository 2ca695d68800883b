"""C functions, compiled once for this machine and kept in the user's cache folder. They are optional.

Without a compiler ($CC, cc, gcc or clang), or if the folder cannot be written, there is no function, and callers do the
same with torch. A call releases the interpreter's lock.
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
    """The address of a tensor's first element."""
    return value.data_ptr()


@lru_cache
def function(source: Path, name: str, arguments: tuple[Any, ...], defines: tuple[str, ...] = ()) -> Any:
    """A C function that returns an int64; None if it cannot be compiled or loaded."""
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
    """The path of the library for this machine, compiled now unless it is cached; None without a compiler."""
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
    except (OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: no home folder
        return None
    return path


def _processor() -> str:
    """The processor's instruction sets: several machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
