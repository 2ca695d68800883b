"""The plain loop: one client after another with ordinary autograd, the least any simulator has to do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import build_model, make_tensors, reference_round
from side import Clock, Options, read_options, report_times, settle


def time_rounds(options: Options) -> list[float]:
    """Run the warm-up and the timed rounds; the milliseconds of each."""
    settle(options)
    model = build_model(options.case).to(options.device)
    x_NS, y_NS = make_tensors(options.case, options.device)
    clock = Clock(options.device)
    clock.start()
    for t in range(options.warmup + options.rounds):
        reference_round(model, x_NS, y_NS, options.case, t)
        clock.lap()
    return clock.laps


if __name__ == "__main__":
    options = read_options("Time rounds of the plain loop.")
    report_times("loop", options, time_rounds(options))
