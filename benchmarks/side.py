"""What the program of every side shares: its command line, its clock and the one JSON line it prints."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from cases import CASES, Case, State, difference

# Float32 sums in another order move the last digits; a different amount of work moves the first.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Options:
    """The command line of a side."""

    case: Case
    rounds: int
    warmup: int
    device: str
    threads: int
    processes: int
    check: bool
    engine: str = "auto"


def read_options(description: str) -> Options:
    """Read the command line of a side."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are timed")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them that are not")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each process")
    parser.add_argument("--processes", type=int, default=1, help="worker processes, where the side has a choice")
    parser.add_argument("--engine", default="auto", help="Turnout's engine")
    parser.add_argument("--check", action="store_true", help="compare one round with the plain loop, time nothing")
    given = vars(parser.parse_args())
    return Options(case=CASES[given.pop("case")], **given)


def settle(options: Options) -> None:
    """Set the threads of this process and, on a GPU, the precision every side gets there: TF32 products."""
    torch.set_num_threads(options.threads)
    if options.device != "cpu":
        torch.set_float32_matmul_precision("high")


class Clock:
    """Milliseconds between calls of `lap`; work queued on a GPU is waited for."""

    def __init__(self, device: str) -> None:
        self.wait: Callable[[], None] = torch.cuda.synchronize if device != "cpu" else lambda: None
        self.last = 0.0
        self.laps: list[float] = []

    def start(self) -> None:
        self.wait()
        self.last = time.perf_counter()

    def lap(self) -> None:
        self.wait()
        now = time.perf_counter()
        self.laps.append((now - self.last) * 1000)
        self.last = now


def report_times(side: str, options: Options, laps: list[float]) -> None:
    """Print the JSON line with the time of each round after the warm-up."""
    times = [round(lap, 3) for lap in laps[options.warmup :]]
    line = {"peer": side, "case": options.case.name, "ms_per_round": times, "torch": torch.__version__}
    print(json.dumps(line), flush=True)


def report_check(side: str, options: Options, state: State) -> None:
    """Print how far a side's first round is from the plain loop's, and fail if that is more than rounding."""
    apart, moved = difference(state, options.case, options.device)
    line = {"peer": side, "case": options.case.name, "max_difference": apart, "max_change": moved}
    print(json.dumps(line), flush=True)
    if not apart <= TOLERANCE * moved:
        raise SystemExit(f"{side} did other work than the plain loop: {apart:.2g} apart after a change of {moved:.2g}")
