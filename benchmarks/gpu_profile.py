"""Where the time of a round goes on a GPU: how long it works, how often it is called, how often the host waits for it.

    python benchmarks/gpu_profile.py [--parts plain,elastic,"8 bit",ternary,together] [--clients 50] [--host]

A round of the CIFAR CNN (case d), as in benchmarks/gpu_parts.py; `busy` is the time in which at least one kernel ran,
`idle` the rest of the profiled round. --host adds the functions of the host that took longest.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from gpu_parts import PARTS, experiment
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from turnout.running.tracks.prepare import prepare

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernelExC", "cudaMemcpyAsync")


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of a union of intervals.

    >>> covered([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def rounds_of(part: str, clients: int) -> Callable[[int], None]:
    """A function that does the next round of a part."""
    track = prepare(experiment(PARTS[part](), clients, "cuda", 1000))
    state = track.begin()

    def one(t: int) -> None:
        nonlocal state
        state, _ = track.round(state, t)

    return one


def timed(one: Callable[[int], None], first: int, rounds: int) -> float:
    """Milliseconds of a round, the median."""
    times = []
    for t in range(first, first + rounds):
        start = time.perf_counter()
        one(t)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def look(part: str, args: argparse.Namespace) -> None:
    """Print where the time of a part's round goes."""
    one = rounds_of(part, args.clients)
    for t in range(args.warm_up):
        one(t)
    took = timed(one, args.warm_up, args.rounds)
    first = args.warm_up + args.rounds
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for t in range(first, first + args.rounds):
            one(t)
        torch.cuda.synchronize()
    show(part, took, found.events(), args)
    if args.host:
        host(one, first + args.rounds, args.rounds)


def show(part: str, took: float, events: Any, args: argparse.Namespace) -> None:
    on_gpu = [e for e in events if e.device_type == DeviceType.CUDA]
    calls = Counter(e.name for e in events if e.device_type == DeviceType.CPU)
    busy = covered((e.time_range.start, e.time_range.end) for e in on_gpu) / 1000 / args.rounds
    waits = sum(calls[name] for name in WAITS) / args.rounds
    launches, graphs = sum(calls[name] for name in LAUNCHES), calls["cudaGraphLaunch"]
    print(f"\n{part}: {took:.2f} ms a round, GPU busy {busy:.2f}, idle {took - busy:.2f}; ", end="")
    print(f"{launches / args.rounds:.0f} launches, {graphs / args.rounds:.0f} graphs, {waits:.0f} waits", flush=True)
    by_kernel: dict[str, list[float]] = {}
    for event in on_gpu:
        by_kernel.setdefault(event.name, []).append((event.time_range.end - event.time_range.start) / 1000)
    longest = sorted(by_kernel.items(), key=lambda pair: -sum(pair[1]))[: args.kernels]
    for name, times in longest:
        print(f"  {sum(times) / args.rounds:7.3f} ms  {len(times) / args.rounds:6.1f} x  {name[:110]}", flush=True)


def host(one: Callable[[int], None], first: int, rounds: int) -> None:
    """The functions of the host that took longest by themselves, and with what they call."""
    watch = cProfile.Profile()
    with watch:
        for t in range(first, first + rounds):
            one(t)
    for order in ("tottime", "cumulative"):
        pstats.Stats(watch).sort_stats(order).print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="plain,elastic,8 bit,ternary,together")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--kernels", type=int, default=25, help="how many kernels are shown, the longest first")
    parser.add_argument("--host", action="store_true")
    args = parser.parse_args()
    for part in args.parts.split(","):
        look(part, args)


if __name__ == "__main__":
    main()
