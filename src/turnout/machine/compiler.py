"""C functions: those of the wheel, or compiled once for this machine and kept in the user's cache folder. Optional.

Without a compiler ($CC, cc, gcc or clang), or if the folder cannot be written, there is no function, and callers do the
same with torch; `trouble` gives the reason. A library of the cache is loaded only if its checksum matches and no other
user can have written it. A call releases the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.machine.bundled import DOUBLE, FLAGS, LIBRARY, SINGLE, TUNED, X86, bundled
from turnout.machine.checksums import is_whole, seal
from turnout.machine.files import cache_dir, replacing

COMPILE_SECONDS = 120.0  # a kernel takes a few, more on a busy machine

NUMBERS = {torch.float32: SINGLE, torch.float64: DOUBLE}  # what C is compiled with for a type of number
pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_trouble: dict[str, str] = {}


def at(value: Tensor | None) -> int | None:
    """The address of a tensor's first element, as an argument of a C function."""
    return None if value is None else value.data_ptr()


def trouble() -> str | None:
    """Why a C function is missing; None if none is."""
    return next(iter(_trouble.values()), None)


@lru_cache
def function(source: Path, name: str, arguments: tuple[Any, ...], defines: tuple[str, ...] = ()) -> Any:
    """A C function that returns an int64; None if it cannot be compiled or loaded."""
    try:
        compiled_function = bundled(name, defines) or ctypes.CDLL(str(compiled(source, defines)))[name]
    except Unavailable as why:
        _trouble[source.stem] = str(why)
        return None
    except (OSError, AttributeError) as error:
        _trouble[source.stem] = f"{source.stem} cannot be loaded: {error}"
        return None
    compiled_function.argtypes, compiled_function.restype = list(arguments), whole
    return compiled_function


class Unavailable(Exception):
    """The reason why there is no compiled library."""


def has_kernels() -> bool:
    """Whether there are C functions: those of the wheel, or a compiler."""
    return LIBRARY.exists() or compiler() is not None


def compiler() -> str | None:
    """The C compiler of this machine."""
    if os.name != "posix":
        return None
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")


def compiled(source: Path, defines: tuple[str, ...] = ()) -> Path:
    """The path of the library for this machine, compiled now unless it is cached; raises Unavailable."""
    program = compiler()
    if program is None:
        raise Unavailable("no C compiler: cc, gcc, clang or $CC")
    flags = [*FLAGS, *[TUNED] * (platform.machine() in X86), *(f"-D{define}" for define in defines)]
    about = repr((_text(source), program, flags, _processor())).encode()
    try:
        path = cache_dir() / "kernels" / f"{source.stem}-{hashlib.blake2b(about, digest_size=12).hexdigest()}.so"
        path.parent.mkdir(0o755, parents=True, exist_ok=True)
        if path.exists():
            _refuse_foreign(path)
        if not path.exists() or not is_whole(path):
            _compile([program, *flags, str(source), "-lm"], path)
            _refuse_foreign(path)
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be used: {error}") from error
    return path


def _text(source: Path) -> bytes:
    """A source and the headers of ours that it includes: a library is compiled again when one of them changes."""
    text = source.read_bytes()
    named = re.findall(rb'^#include "(.+)"', text, re.MULTILINE)
    return text + b"".join(_text(source.parent / name.decode()) for name in named)


def _compile(command: list[str], path: Path) -> None:
    """Compile into a file of the cache in one step, with a checksum."""
    run = partial(subprocess.run, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS)
    try:
        with replacing(path, shared=True) as made:
            done = run([*command, "-o", str(made)])
            unknown = [flag for flag in ("-march=native", TUNED) if flag.partition("=")[0] in done.stderr]
            if done.returncode and unknown:  # Clang on some processors; GCC before 10
                done = run([*(word for word in command if word not in unknown), "-o", str(made)])
            if done.returncode:
                words = done.stderr.strip().splitlines()
                raise Unavailable(f"{command[0]} failed: {words[0][:200] if words else f'code {done.returncode}'}")
            seal(made)
            made.chmod(0o755)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} did not answer in {COMPILE_SECONDS:.0f} s") from error


def _refuse_foreign(path: Path) -> None:
    """Refuse a library that another user may have written: it would run as this user."""
    for place in (path, path.parent):
        about = place.stat()
        if about.st_uid not in (os.geteuid(), 0) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unavailable(
                f"{place} belongs to another user or can be written by others, so it is not loaded: delete it"
            )


def _processor() -> str:
    """The processor's instruction sets: several machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
