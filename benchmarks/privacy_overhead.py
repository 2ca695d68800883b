"""What privacy adds to a round: milliseconds without it and with each kind of noise, in case b (100 clients of the MLP
784-200-200-10, 10 steps of 10) and case d (50 clients of pfl's CIFAR CNN, 5 steps of 10).

    python benchmarks/privacy_overhead.py b
    python benchmarks/privacy_overhead.py d --device cuda

Medians over rounds, and of how much longer a round is than the same one without privacy; the sides take turns, round by
round, so that they meet the same machine. Processor time is that of all threads: it counts where other programs run
beside. The separation is 10 rounds, so the population is ten cohorts,
of which all sides ask one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import torch

import turnout as to
from turnout.running.tracks.prepare import prepare

SEPARATION = 10
WARM = 10  # rounds that are not counted
CASES: dict[str, tuple[tuple[int, ...], int, int, Any]] = {
    "b": ((784,), 100, 10, to.models.MLP(200, 200)),
    "d": ((3, 32, 32), 50, 5, to.models.pfl_cifar_cnn()),
}
SIDES = {"without": None, "gaussian": "gaussian", "banded": "banded", "blt": "blt"}


def experiment(name: str, noise: str | None, device: str, rounds: int) -> to.Experiment:
    shape, cohort, steps, model = CASES[name]
    clients, each = cohort * SEPARATION, 20
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(clients * each, *shape, generator=draw)
    y = torch.randint(0, 10, (len(x),), generator=draw)
    owner = torch.arange(clients).repeat_interleave(each)
    private = None
    if noise is not None:
        little = 1e-3  # or a large model would diverge; it costs the same
        private = to.Private(
            1.0, n0=cohort, delta=1e-6, noise_multiplier=little, noise=noise, min_separation=SEPARATION
        )
    return to.Experiment(
        to.World(to.data.Own(x, y, owner, test=(x[:10], y[:10]), test_share=0.0)),
        model,
        to.Algorithm(
            local=to.Local(to.SGD(0.05), steps=steps, batch_size=10),
            selection=to.selection.Count(cohort),
            shares=to.weighting.Shares("uniform"),
            privacy=private,
        ),
        rounds=rounds,
        runtime=to.runtime.InProcess(device=device, precision="tf32" if device == "cuda" else "float32"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    on_gpu, sides = given.device == "cuda", list(SIDES)
    tracks = {side: prepare(experiment(given.case, SIDES[side], given.device, 200)) for side in sides}
    states = {side: track.begin() for side, track in tracks.items()}
    spent: dict[str, dict[str, list[float]]] = {"round": {}, "processor": {}}
    for t in range(given.rounds + WARM):
        for side in sides[t % len(sides) :] + sides[: t % len(sides)]:  # no side always follows the same one
            if on_gpu:
                torch.cuda.synchronize()
            start, busy = time.perf_counter(), time.process_time()
            states[side], _ = tracks[side].round(states[side], t)
            if on_gpu:
                torch.cuda.synchronize()
            spent["round"].setdefault(side, []).append(1000 * (time.perf_counter() - start))
            spent["processor"].setdefault(side, []).append(1000 * (time.process_time() - busy))
    where = torch.cuda.get_device_name() if on_gpu else f"{len(os.sched_getaffinity(0))} cores"
    print(f"case {given.case} on {where}, {given.rounds} rounds, torch {torch.__version__}")
    for words, found in spent.items():
        plain = found["without"][WARM:]
        for side in sides:
            ratio = [100 * (own / other - 1) for own, other in zip(found[side][WARM:], plain, strict=True)]
            low, middle, high = statistics.quantiles(ratio, n=4)
            value = statistics.median(found[side][WARM:])
            more = "" if side == "without" else f"  {middle:+6.1f} %  (half of the rounds {low:+.1f} to {high:+.1f} %)"
            print(f"  {words:10} {side:10}{value:8.2f} ms{more}")


if __name__ == "__main__":
    main()
