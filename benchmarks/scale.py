"""A population of a million must not matter: the same cohort of 100 drawn from 1,000 and from 1,000,000 clients.

    python benchmarks/scale.py [--rounds 30]

Each population runs in a process of its own (so that its peak memory is its own); rounds are timed whole, cohort, data
and record included. Prints the ratio of the median round and the peak memory of each, for an MLP and for a logistic
regression. A thousand clients' samples fit one pool that is made once; a million clients' are made when they are asked,
and against the few steps of a logistic regression that is what one sees.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

import turnout as to
from turnout.running.tracks.prepare import prepare

COHORT = 100


MODELS = {"mlp": to.models.MLP(200, 200), "logistic": to.models.Logistic()}


def rounds(clients: int, model: str, count: int) -> None:
    """Time rounds of one population; print one JSON line."""
    experiment = to.Experiment(
        world=to.World(
            to.data.Synthetic(1.0, 1.0, clients=clients, sizes=to.data.Equal(100)), to.participation.Traces(first=5)
        ),
        model=MODELS[model],
        algorithm=to.Algorithm(to.Local(to.SGD(lr=0.1), epochs=5, batch_size=20), selection=to.selection.Count(COHORT)),
    )
    start = time.perf_counter()
    track = prepare(experiment)
    ready = time.perf_counter() - start
    state, times = track.begin(), []
    for t in range(count):
        start = time.perf_counter()
        state, _ = track.round(state, t)
        times.append((time.perf_counter() - start) * 1000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"clients": clients, "ms": median(times[3:]), "ready_s": ready, "peak_gib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("CLIENTS", "MODEL"), help="time one population, print JSON")
    given = parser.parse_args()
    if given.one:
        rounds(int(given.one[0]), given.one[1], given.rounds)
        return
    for model in MODELS:
        compare(model, given.rounds, given.repeats)


def compare(model: str, count: int, repeats: int) -> None:
    """Both populations in turn, several times."""
    found: dict[int, list[dict[str, float]]] = {1_000: [], 1_000_000: []}
    for _ in range(repeats):
        for clients, results in found.items():
            command = [sys.executable, __file__, "--one", str(clients), model, "--rounds", str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    small, large = found.values()
    ratios = [b["ms"] / a["ms"] for a, b in zip(small, large, strict=True)]
    peak = " and ".join(f"{max(r['peak_gib'] for r in results):.2f}" for results in found.values())
    print(f"{model}: a round of {COHORT} from 1,000,000 clients takes {median(ratios):.2f}x the time of one from 1,000")
    print(f"{' ' * len(model)}  peak memory {peak} GiB", flush=True)


if __name__ == "__main__":
    main()
