"""What a C compiler makes for the campaign: the shim over operations on files, and kernels that check every access."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from faults import Counts

HERE = Path(__file__).parent
TESTS = ("tests/engine/test_native.py", "tests/parts/test_codec.py", "tests/data/test_data_synthetic.py")
SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g"


def compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def shim(folder: Path) -> Path | None:
    """The library to preload; None without a compiler."""
    found = compiler()
    if found is None:
        print("no C compiler (cc, gcc or clang): no kills at operations on files, no failing disk, no sanitizers")
        return None
    made = folder / "shim.so"
    subprocess.run([found, "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "shim.c"), "-ldl"], check=True)
    return made


def sanitized(counts: Counts) -> None:
    """The tests of the C code, with kernels that check every access and every operation."""
    found = compiler()
    names = [_library(found, name) for name in ("libasan.so", "libubsan.so")] if found else []
    if not all(Path(name).is_absolute() for name in names) or not names:
        print("no C compiler with sanitizers: the C code is not checked")
        return
    with tempfile.TemporaryDirectory() as home:
        wrapper = Path(home) / "sanitized-cc"
        wrapper.write_text(f'#!/bin/sh\nexec {found} "$@" -O1 {SANITIZED}\n')
        wrapper.chmod(0o755)
        environment = os.environ | {
            "CC": str(wrapper), "XDG_CACHE_HOME": home, "LD_PRELOAD": " ".join(names), "OMP_NUM_THREADS": "1",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:protect_shadow_gap=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
        done = subprocess.run(command, env=environment, cwd=HERE.parent.parent, capture_output=True, text=True)
        kernels = Path(home) / "turnout" / "kernels"
        made, failed = len(list(kernels.glob("*.so"))), len(list(kernels.glob("*.failed")))
    bad = done.returncode or failed or not made
    for i in range(max(1, made)):
        words = f"{made} made, {failed} failed: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        counts.add("sanitized kernels", words if bad and i == 0 else None)


def _library(found: str, name: str) -> str:
    command = [found, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
