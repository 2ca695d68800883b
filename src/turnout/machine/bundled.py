"""Kernels that a wheel brings: one library with every C function, compiled for several instruction sets.

setup.py builds it without torch, so this module imports nothing of ours. A checkout has no such library: its kernels
are compiled on first use (compiler.py).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-fno-trapping-math")
# GCC fuses products into sums by the processor that it tunes for. Tuned for one, the wheel's kernels, and those
# compiled on any processor with the same instruction sets, give the same bits.
TUNED = "-mtune=znver3"
X86 = ("x86_64", "AMD64", "amd64")

LIBRARY = Path(__file__).with_name("kernels.so")
SINGLE, DOUBLE = ("REAL=float", "SINGLE"), ("REAL=double",)
KERNELS = (  # source, function, and the definitions that it is compiled with
    ("engine/kernels/c/local_steps.c", "train", (SINGLE, DOUBLE)),
    ("engine/kernels/c/dropout.c", "mask", (SINGLE, DOUBLE)),
    ("engine/kernels/c/batches.c", "order", ((),)),
    ("parts/compression/codec/largest.c", "largest", (SINGLE, DOUBLE)),
    ("data/synthetic.c", "make", ((),)),
)
LEVELS: dict[str, tuple[str, ...]] = {  # torch's name of what an x86-64 processor can do; elsewhere there is the first
    "DEFAULT": (),
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq"),
}


def symbol(name: str, defines: tuple[str, ...], level: str) -> str:
    """The name of a function in the library.

    >>> symbol("train", ("REAL=float", "SINGLE"), "AVX2")
    'train_REAL_float_SINGLE_AVX2'
    """
    return re.sub(r"\W", "_", "_".join((name, *defines, level)))


def build(library: Path, compiler: list[str], machine: str) -> None:
    """Compile every function for every instruction set of a kind of machine."""
    package = Path(__file__).parents[1]
    common = [flag for flag in FLAGS if flag not in ("-march=native", "-shared")] + [TUNED] * (machine in X86)
    levels = LEVELS if machine in X86 else {"DEFAULT": ()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        commands, objects = [], []
        for source, name, variants in KERNELS:
            for defines in variants:
                for level, flags in levels.items():
                    whole = symbol(name, defines, level)
                    objects.append(f"{folder}/{whole}.o")
                    defined = [f"-D{define}" for define in (*defines, f"{name}={whole}")]
                    commands.append([*common, *flags, *defined, "-c", str(package / source), "-o", objects[-1]])
        for _ in pool.map(lambda command: subprocess.run([*compiler, *command], check=True), commands):
            pass
        subprocess.run([*compiler, "-shared", "-pthread", "-s", *objects, "-lm", "-o", str(library)], check=True)


def levels_here() -> list[str]:
    """Instruction sets of the library that this processor has, the best last."""
    import torch

    can, levels = torch.backends.cpu.get_cpu_capability(), list(LEVELS)
    return levels[: levels.index(can if can in LEVELS else "DEFAULT") + 1]


def bundled(name: str, defines: tuple[str, ...]) -> Any:
    """A function of the wheel's library for this processor; None in a checkout."""
    if not LIBRARY.exists():
        return None
    return ctypes.CDLL(str(LIBRARY))[symbol(name, defines, levels_here()[-1])]
