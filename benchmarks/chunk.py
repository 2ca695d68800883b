"""Which chunk of clients is fastest on this machine? Cases a, b and c with several chunk sizes, taking turns.

    python benchmarks/chunk.py [--repeats 9]

The default chunk is as many clients as touch `CACHE` bytes a step (turnout/runtimes/inprocess.py). This prints, for
each case, the best time of a round with each chunk size, and marks the default.
"""

from __future__ import annotations

import argparse
import time

from cases import CASES, build_model, make_tensors
from turnout_side import NextInLine, held_by_clients

import turnout as to
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights

CHUNKS = {"a": (10, 25, 50, None), "b": (2, 4, 8, 16, 50, None), "c": (1, 2, 4, 7, 10, None)}


def track(name: str, chunk: int | None) -> Weights:
    case = CASES[name]
    local = to.Local(to.SGD(lr=case.lr), steps=case.steps, batch_size=case.batch)
    experiment = to.Experiment(
        world=to.World(held_by_clients(case, *make_tensors(case))),
        model=build_model(case),
        algorithm=to.Algorithm(local, selection=NextInLine(case)),
        runtime=to.runtime.InProcess(device="cpu", chunk=chunk),
    )
    return prepare(experiment)


def best_times(name: str, repeats: int) -> dict[int | None, float]:
    """The best of many rounds for each chunk size, in milliseconds; the sizes take turns."""
    tracks = {chunk: track(name, chunk) for chunk in CHUNKS[name]}
    best = dict.fromkeys(tracks, float("inf"))
    for t in range(repeats):
        for chunk, one in tracks.items():
            start = time.perf_counter()
            one.round(one.begin(), t)
            best[chunk] = min(best[chunk], (time.perf_counter() - start) * 1000)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--case", nargs="+", choices=CHUNKS, default=list(CHUNKS))
    given = parser.parse_args()
    for name in given.case:
        times = best_times(name, given.repeats)
        fastest = min(times.values())
        shown = ", ".join(
            f"{'default' if chunk is None else chunk}: {value / fastest:.2f}x" for chunk, value in times.items()
        )
        print(f"case {name} ({fastest:.1f} ms at best)  {shown}", flush=True)


if __name__ == "__main__":
    main()
