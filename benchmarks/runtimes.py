"""What a round costs beyond training on each runtime, and from what size each pays.

    python benchmarks/runtimes.py [--runtimes threads,processes,ray] [--workers 2] [--rounds 12] [--device cpu]

For models and cohorts of several sizes: the seconds of a cohort's work in one process with one thread, then on each
runtime with `--workers` workers of one thread: the whole of it, and what of it went beyond the training of the slowest
part (`beyond`: packing, sending, gathering, putting together). Of the quickest round, since what else runs on the
machine can only add, after three that do not count. `pays from` is the seconds of training in one process from which M
machines are faster than one, if each trains as fast as this one: beyond * M / (M - 1). On one machine the workers
share its cores: there, threads in one process do the same without the cost.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import turnout as to
from turnout.running.tracks.prepare import prepare
from turnout.runtimes.crew import WORKERS
from turnout.runtimes.parted import PartedPool
from turnout.settings import RuntimeSpec

WARM = 3
MODELS = {
    "logistic": to.models.Logistic(),
    "MLP 200-200": to.models.MLP(200, 200),
    "MLP 400-400": to.models.MLP(400, 400),
}
COHORTS = (10, 50, 200)


@dataclass(frozen=True)
class Timed:
    """Seconds of a cohort's work, and of it what went beyond its slowest part, in the quickest round."""

    work: float
    beyond: float = 0.0


def experiment(model: str, cohort: int, kept: bool) -> to.Experiment:
    """Everybody asked does ten steps of 20 samples; `kept`: clients keep a control variate, which travels."""
    return to.Experiment(
        world=to.World(to.data.Synthetic(1.0, 1.0, clients=400, sizes=to.data.Equal(200))),
        model=MODELS[model],
        algorithm=to.Algorithm(
            to.Local(to.SGD(lr=0.01), steps=10, batch_size=20),
            terms=[to.terms.Scaffold()] if kept else [],
            selection=to.selection.Count(cohort),
        ),
        evaluate=to.Evaluate(every=1_000_000),
    )


def timed(given: to.Experiment, runtime: RuntimeSpec, rounds: int) -> Timed:
    track = prepare(given.but(runtime=runtime, rounds=WARM + rounds))
    inner, seconds, beyond = track.runtime.work, list[float](), list[float]()

    def work(*arguments: object, **more: object) -> object:
        start = time.perf_counter()
        found = inner(*arguments, **more)
        seconds.append(time.perf_counter() - start)
        beyond.append(track.runtime.clients.beyond if isinstance(track.runtime.clients, PartedPool) else 0.0)
        return found

    track.runtime.work = work
    state = track.begin()
    for t in range(WARM + rounds):
        state, _ = track.round(state, t)
    track.runtime.close()
    return Timed(min(seconds[WARM:]), min(beyond[WARM:]))


def settings(name: str, workers: int, device: str) -> RuntimeSpec:
    each = to.runtime.InProcess(device=device, threads=1)
    if name == "in-process":
        return each
    if name == "threads":
        return to.runtime.InProcess(device=device, threads=workers)
    return to.runtime.Processes(workers, each) if name == "processes" else to.runtime.Ray(workers=workers, compute=each)


def row(model: str, cohort: int, kept: bool, runtimes: Sequence[str], workers: int, rounds: int, device: str) -> str:
    given = experiment(model, cohort, kept)
    one = timed(given, settings("in-process", 1, device), rounds)
    parameters = prepare(given.but(runtime=to.runtime.InProcess(device="cpu", threads=1))).model.layout.shared
    cells = [f"{model}{' + SCAFFOLD' if kept else ''}", f"{parameters:,}", str(cohort), f"{1000 * one.work:.1f}"]
    for name in runtimes:
        found = timed(given, settings(name, workers, device), rounds)
        cells += [f"{1000 * found.work:.1f} ({one.work / found.work:.2f})"]
        if name != "threads":
            cells += [f"{1000 * found.beyond:.1f}", f"{1000 * found.beyond * workers / max(1, workers - 1):.0f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtimes", default="threads,processes,ray")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cohorts", default=",".join(map(str, COHORTS)))
    given = parser.parse_args()
    runtimes = given.runtimes.split(",")
    head = ["model", "parameters", "cohort", "one process, ms"]
    for name in runtimes:
        head += [f"{name}, ms (times faster)"] + (["beyond, ms", "pays from, ms"] if name != "threads" else [])
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    with WORKERS.reused():
        for model in given.models.split(","):
            for cohort in map(int, given.cohorts.split(",")):
                print(row(model, cohort, False, runtimes, given.workers, given.rounds, given.device), flush=True)
        print(row(given.models.split(",")[-1], 50, True, runtimes, given.workers, given.rounds, given.device))


if __name__ == "__main__":
    main()
