"""All parts at once against training alone: the MNIST CNN of FDMS, 100 clients, the same turnout on both sides.

    python benchmarks/together.py [--rounds 3] [--clients 100] [--samples 200] [--device cpu]

"alone" is FedAvg with nothing but local training and a weighted sum. "together" has everything on: scheme C, friends,
an elastic term, a personal layer, sparse ternary messages both ways, a join and a leave. Both see the same clients
finish the same work in every round, so the ratio is what the parts cost. Rounds are taken in turns in one process, and
the ratio is formed round by round; the last table shows where the time of "together" went.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from rich.console import Console

import turnout as to
from turnout.machine.profiling import Stopwatch
from turnout.rng import rng
from turnout.running.profile import profile_table
from turnout.running.tracks.prepare import prepare

ALLOWED = 2.0


def images(clients: int, samples: int) -> to.data.Own:
    """Random images in MNIST's shape, two labels a client."""
    generator = rng(0, "together")
    owner = torch.arange(clients).repeat_interleave(samples)
    x = torch.rand(len(owner), 1, 28, 28, generator=generator)
    y = (owner + torch.randint(0, 2, (len(owner),), generator=generator)) % 10
    return to.data.Own(x, y, owner, test_share=0.0)


def experiments(clients: int, samples: int, rounds: int, device: str) -> dict[str, to.Experiment]:
    """Both sides; paper 003's local work: two epochs in batches of 5."""
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=5)
    here = to.participation.Dropout(0.3, when_up=to.participation.Traces(first=5))
    events = (to.Join(clients - 1, 1), to.Leave(0, 1))
    world = to.World(images(clients, samples), here, events)
    alone = to.Experiment(
        world,
        to.models.fdms_mnist_cnn(),
        to.Algorithm(local, weighting=to.weighting.ByShare(), membership=to.Membership(join="vanilla", surveyed=0)),
        rounds=rounds,
        runtime=to.runtime.InProcess(device=device),
    )
    everything = to.Algorithm(
        local,
        terms=(to.terms.Elastic(0.01, reduce="mean"),),
        personal=to.personal.Named("output.*"),
        compression=to.compression.SparseTernary(),
        substitution=to.substitution.Friends(),
        weighting=to.weighting.ByWork(),
        membership=to.Membership(leave="decide"),
    )
    return {"alone": alone, "together": alone.but(algorithm=everything)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="rounds on each side; the first is not counted")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=200, help="of each client")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tracks, watches = {}, {}
    for name, experiment in experiments(given.clients, given.samples, given.rounds, given.device).items():
        tracks[name] = prepare(experiment)
        watches[name] = Stopwatch(tracks[name].device)
    states = {name: track.begin() for name, track in tracks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in tracks}
    for t in range(given.rounds):
        for name, track in tracks.items():
            start = time.perf_counter()
            with watches[name].running("weights"):
                states[name], _ = track.round(states[name], t)
            seconds[name].append(time.perf_counter() - start)
        if t == 0:
            for watch in watches.values():
                watch.seconds.clear()
    ratios = [b / a for a, b in zip(seconds["alone"][1:], seconds["together"][1:], strict=True)]
    for name, found in seconds.items():
        print(f"{name:10} {1000 * statistics.median(found[1:]):8.1f} ms a round")
    middle = statistics.median(ratios)
    print(f"together / alone: {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f}); allowed {ALLOWED:g}")
    for name, watch in watches.items():
        Console(width=120).print(f"\n{name}", profile_table(given.rounds - 1, watch.seconds))
    if middle > ALLOWED:
        raise SystemExit("the parts cost more than they may")


if __name__ == "__main__":
    main()
