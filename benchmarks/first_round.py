"""Seconds until the first round has ended, where Triton has compiled nothing yet and where its kernels are on disk.

    python benchmarks/first_round.py [--cases d,e] [--clients 50]

Each line is a process of its own, with kernels compiled side by side (the first step is rehearsed) or one by one, as
they are launched. `prepared` is everything before the first round but the start of Python and CUDA, `rehearsed` the
part of the first round that waits for compilers; `weights` is a digest of the weights after two rounds, which must not
depend on any of it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

import torch
from cases import CASES
from gpu_models import experiment, laps

from turnout.engine import train
from turnout.machine import triton_tools
from turnout.running.tracks.prepare import prepare

WAYS = ("one by one", "side by side")


def count_kernels() -> dict[str, int]:
    """Kernels that were asked for, and those that had to be compiled, from now on."""
    found = {"asked": 0, "compiled": 0}

    def listen(*, cache_hit: bool, **_: Any) -> None:
        found["asked"] += 1
        found["compiled"] += not cache_hit

    if triton_tools.installed():
        importlib.import_module("triton.knobs").compilation.listener = listen
    return found


def time_rehearsals() -> list[float]:
    """Seconds of each rehearsal, from now on."""
    seconds = []

    def timed(work: Any) -> None:
        start = time.perf_counter()
        triton_tools.rehearse(work)
        seconds.append(time.perf_counter() - start)

    train.rehearse = timed
    return seconds


def first_rounds(name: str, clients: int, device: str) -> str:
    """The line of one process."""
    args = argparse.Namespace(tails=False, evaluate=False, device=device)
    case, kernels, rehearsed = replace(CASES[name], population=clients), count_kernels(), time_rehearsals()
    given = experiment(case, clients, args)
    torch.zeros(1, device=device).add_(1).cpu()
    start = time.perf_counter()
    track = prepare(given)
    state, prepared = track.begin(), time.perf_counter() - start

    def one(t: int) -> None:
        nonlocal state
        state, _ = track.round(state, t)

    first, second = (value / 1000 for value in laps(one, 2, device == "cuda"))
    digest = hashlib.sha256(state.shared_P.cpu().numpy().tobytes()).hexdigest()[:12]
    line = f"{prepared + first:6.2f} s: prepared {prepared:5.2f}  first round {first:5.2f}"
    line += f"  rehearsed {sum(rehearsed):5.2f}  second round {second:.3f}"
    line += f"  kernels {kernels['asked']} ({kernels['compiled']} compiled)"
    return f"{line}  weights {digest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", default="d,e")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--way", choices=WAYS, help="only one process: this one")
    args = parser.parse_args()
    if args.way:
        triton_tools.SIDE_BY_SIDE = args.way == WAYS[1]
        print(first_rounds(args.cases, args.clients, args.device), flush=True)
        return
    for name in args.cases.split(","):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                for kept in ("nothing compiled", "all on disk"):
                    print(f"{name} {args.clients} clients, {way:12}, {kept:16}", end=" ", flush=True)
                    more = ["--cases", name, "--clients", str(args.clients), "--device", args.device, "--way", way]
                    subprocess.run([sys.executable, __file__, *more], env=os.environ | {"TRITON_CACHE_DIR": folder})


if __name__ == "__main__":
    main()
