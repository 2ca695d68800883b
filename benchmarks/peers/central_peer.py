"""One model trained on the same samples: each step is one large batch of everybody's, a simulator's limit."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import build_model, make_tensors, mean_loss
from side import Clock, Options, read_options, report_times, settle


def time_rounds(options: Options) -> list[float]:
    """Run the warm-up and the timed rounds; the milliseconds of each."""
    settle(options)
    case = options.case
    model = build_model(case).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr)
    x_NS, y_NS = make_tensors(case, options.device)
    clock = Clock(options.device)
    clock.start()
    for t in range(options.warmup + options.rounds):
        cohort = torch.tensor(case.cohort_at(t), device=x_NS.device)
        x_CS, y_CS = x_NS[cohort], y_NS[cohort]
        for x_CB, y_CB in zip(x_CS.split(case.batch, 1), y_CS.split(case.batch, 1), strict=True):
            optimizer.zero_grad()
            mean_loss(model(x_CB.flatten(0, 1)), y_CB.flatten(0, 1)).backward()
            optimizer.step()
        clock.lap()
    return clock.laps


if __name__ == "__main__":
    options = read_options("Time rounds of one model on everybody's samples.")
    report_times("central", options, time_rounds(options))
