"""The two processes of a measured trace: a training job with a deadline, and a competitor for its CPU.

Run as a script (`python contention.py train ...`); it uses only the standard library, so that it starts in milliseconds
and has no threads. Both processes end when the process that started them has ended.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time

INPUTS = 60


def pin(core: int) -> None:
    """Keep this process on one core, if the system can and the core is not -1."""
    if core >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def train(parent: int, core: int, seed: int, rounds: int, epochs: int, samples: int, deadline_seconds: float) -> None:
    """Print the share of the epochs finished before the deadline, and the seconds taken, for every round."""
    pin(core)
    chance = random.Random(seed)
    weights = [0.0] * INPUTS
    x = [[chance.gauss(0, 1) for _ in range(INPUTS)] for _ in range(min(samples, 100))]
    for _ in range(rounds):
        if os.getppid() != parent:
            return
        begin, done = time.perf_counter(), 0
        for i in range(epochs * samples):
            step(weights, x[i % samples % len(x)], label=i % samples % 2)
            if time.perf_counter() > begin + deadline_seconds:  # an unfinished epoch does not count
                break
            done = (i + 1) // samples
        print(done / epochs, time.perf_counter() - begin, flush=True)


def step(weights: list[float], x: list[float], label: int, lr: float = 0.01) -> None:
    """One step of SGD on the logistic loss of one sample: w <- w - lr (sigmoid(w.x) - label) x.

    >>> weights = [0.0, 0.0]
    >>> step(weights, [1.0, -2.0], label=1, lr=1.0)
    >>> weights
    [0.5, -1.0]
    """
    error = 1 / (1 + math.exp(-sum(w * v for w, v in zip(weights, x, strict=True)))) - label
    for j, v in enumerate(x):
        weights[j] -= lr * error * v


def compete(parent: int, core: int, seed: int, load: float, period: float) -> None:
    """Until the parent ends: use load x period of CPU time, then sleep for the rest of the period."""
    pin(core)
    chance = random.Random(seed)
    while os.getppid() == parent:
        this = period * chance.uniform(0.5, 1.5)
        stop = time.process_time() + load * this
        while time.process_time() < stop:
            pass
        time.sleep((1 - load) * this)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    what, *numbers = sys.argv[1:]
    parent, core, seed = map(int, numbers[:3])
    if what == "train":
        rounds, epochs, samples = map(int, numbers[3:6])
        train(parent, core, seed, rounds, epochs, samples, deadline_seconds=float(numbers[6]))
    else:
        compete(parent, core, seed, load=float(numbers[3]), period=float(numbers[4]))
