"""What compression costs beside training: the CNN of FDMS for MNIST, 100 clients, both ways.

    python benchmarks/compression.py            # each compression: its part of a round, its messages
    python benchmarks/compression.py --keep 0.1

Training is the time inside the trainer alone; compression is encoding, decoding and broadcasting, and fetching and
storing residuals. All are taken in the same rounds, so that a busy machine slows them alike.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

import turnout as to
from turnout.machine.profiling import Stopwatch
from turnout.running.tracks.prepare import prepare

COMPRESSION = ("encode", "decode", "broadcast", "client state")  # stages of the round (turnout run --profile)


def experiment(args: argparse.Namespace, compression: Any) -> to.Experiment:
    """Made-up pictures: what they show does not matter here."""
    g = torch.Generator().manual_seed(0)
    owner = torch.arange(args.clients).repeat_interleave(args.steps * args.batch)
    x, y = torch.rand(len(owner), 1, 28, 28, generator=g), torch.randint(0, 10, (len(owner),), generator=g)
    data = to.data.Own(x, y, owner, test=(x[:100], y[:100]), test_share=0.0)
    local = to.Local(to.SGD(lr=0.1), epochs=1, batch_size=args.batch)
    runtime = to.runtime.InProcess(device=args.device, threads=args.threads)
    algorithm = to.Algorithm(local, compression=compression)
    return to.Experiment(to.World(data), to.models.fdms_mnist_cnn(), algorithm, rounds=args.rounds, runtime=runtime)


def measure(args: argparse.Namespace, compression: Any) -> dict[str, float]:
    """Medians over the rounds after the first two."""
    prepared = prepare(experiment(args, compression))
    state, rows = prepared.begin(), []
    for t in range(args.rounds):
        watch = Stopwatch(prepared.device)
        with watch.running("the rest"):
            state, record = prepared.round(state, t)
        training = watch.seconds["local training"]
        compressing = sum(watch.seconds.get(stage, 0.0) for stage in COMPRESSION)
        rows.append(
            {
                "training": training,
                "compression": compressing,
                "ratio": compressing / training,
                "part": compressing / sum(watch.seconds.values()),
                "up": record.bytes_up / record.counted,
                "down": record.bytes_down / record.counted,
            }
        )
    return {name: statistics.median(row[name] for row in rows[2:]) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--keep", type=float, default=0.01)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    kinds = {
        "dense": to.compression.Dense(),
        "sparse-ternary": to.compression.SparseTernary(args.keep),
        "top-k": to.compression.TopK(args.keep),
        "quantise": to.compression.Quantise(),
    }
    print(f"{args.clients} clients, {args.steps} steps of {args.batch}; medians of {args.rounds - 2} rounds")
    print("kind         training ms  compression ms  / training  of a round  bytes up    down (a client)")
    for name, kind in kinds.items():
        found = measure(args, kind)
        times = f"{1000 * found['training']:8.1f}  {1000 * found['compression']:14.1f}  {found['ratio']:10.1%}"
        print(f"{name:15} {times}  {found['part']:10.1%}  {found['up']:8.0f} {found['down']:7.0f}")


if __name__ == "__main__":
    main()
