"""What each part costs on a GPU: milliseconds a round of 50 clients of the CIFAR CNN, 5 steps of 10 samples, and the
ratio to the plain round. Beside it `central`: one model trained on the same samples in one large batch.

    python benchmarks/gpu_parts.py [--device cuda] [--clients 50] [--rounds 30] [--parts plain,scaffold,...]
    python benchmarks/gpu_parts.py --model mtfl_cifar_cnn --clients 100 --parts adam,"independent adam"
    python benchmarks/gpu_parts.py --model fdms_cifar_cnn --clients 20 --precision float32 --parts plain

Medians over rounds after a warm-up; the sides are measured one after another in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import turnout as to
from turnout.engine.trainers import Place
from turnout.running.tracks.prepare import prepare

PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "elastic": lambda: {"terms": [to.terms.Elastic()]},
    "proximal": lambda: {"terms": [to.terms.Proximal()]},
    "scaffold": lambda: {"terms": [to.terms.Scaffold()]},
    "fedgate": lambda: {"terms": [to.terms.FedGATE()]},
    "ternary": lambda: {"compression": to.compression.SparseTernary(0.01)},
    "8 bit": lambda: {"compression": to.compression.Quantise()},
    "friends": lambda: {"substitution": to.substitution.Friends()},
    "stale": lambda: {"substitution": to.substitution.Stale()},
    "head at home": lambda: {"personal": to.personal.Named("output.*")},
    "independent": lambda: {"personal": to.personal.everything},
    "momentum": lambda: {"local": local(to.SGD(0.05, momentum=0.9))},
    "adam": lambda: {"local": local(to.Adam(0.001))},
    "independent adam": lambda: {"local": local(to.Adam(0.001)), "personal": to.personal.everything},
    "together": lambda: {
        "terms": [to.terms.Elastic(0.01, reduce="mean")],
        "personal": to.personal.Named("output.*"),
        "compression": to.compression.SparseTernary(0.01),
        "substitution": to.substitution.Friends(),
    },
}


def local(optimizer: Any) -> to.Local:
    return to.Local(optimizer, steps=5, batch_size=10)


def data(clients: int, each: int = 50) -> to.data.Own:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * each, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (len(x),), generator=generator)
    return to.data.Own(x, y, torch.arange(clients).repeat_interleave(each), test=(x[:10], y[:10]), test_share=0.0)


def experiment(
    settings: dict[str, Any],
    clients: int,
    device: str,
    rounds: int,
    model: str = "pfl_cifar_cnn",
    precision: str = "tf32",
) -> to.Experiment:
    algorithm = to.Algorithm(**{"local": local(to.SGD(0.05)), **settings})
    world = to.World(data(clients), to.participation.Always())
    runtime = to.runtime.InProcess(device=device, precision=precision if device == "cuda" else "float32")
    return to.Experiment(world, getattr(to.models, model)(), algorithm, rounds=rounds, runtime=runtime)


def milliseconds(one: Callable[[int], None], rounds: int, warm_up: int, cuda: bool) -> float:
    times = []
    for t in range(warm_up + rounds):
        start = time.perf_counter()
        one(t)
        if cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[warm_up:])


def part_time(name: str, args: argparse.Namespace) -> float:
    rounds, beside = args.rounds + args.warm_up, (args.model, args.precision)
    track = prepare(experiment(PARTS[name](), args.clients, args.device, rounds, *beside))
    state = track.begin()

    def one(t: int) -> None:
        nonlocal state
        state, _ = track.round(state, t)

    return milliseconds(one, args.rounds, args.warm_up, args.device == "cuda")


def central_time(args: argparse.Namespace) -> float:
    """One model, five steps on a batch of everybody's ten samples each."""
    model = getattr(to.models, args.model)().build((3, 32, 32), 10).to(args.device)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.05), nn.CrossEntropyLoss()
    x = torch.randn(args.clients * 10, 3, 32, 32, device=args.device)
    y = torch.randint(0, 10, (len(x),), device=args.device)

    def one(t: int) -> None:
        for _ in range(5):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

    return milliseconds(one, args.rounds, args.warm_up, args.device == "cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=15)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--model", default="pfl_cifar_cnn", help="of turnout.models")
    parser.add_argument("--precision", default="tf32", choices=["tf32", "float32"])
    parser.add_argument("--host-rows", action="store_true", help="keep clients' rows beside the CPU, for comparison")
    args = parser.parse_args()
    if args.host_rows:
        Place.share = lambda self: 0  # type: ignore[method-assign]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
    central = central_time(args)
    print(f"{'central':14} {central:9.1f} ms", flush=True)
    plain = None
    for name in args.parts.split(","):
        found = part_time(name, args)
        plain = plain or found
        line = f"{name:14} {found:9.1f} ms  {found / plain:5.2f} x  {found / central:5.2f} x central"
        print(f"{line}  {1000 * args.clients / found:6.0f} clients/s", flush=True)


if __name__ == "__main__":
    main()
