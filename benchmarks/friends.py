"""What friends cost at scale: 10,000 clients, 1,000 of them present a round, a model of 20,000 parameters.

    python benchmarks/friends.py                  # bookkeeping against training, in the same rounds; peak memory
    python benchmarks/friends.py --candidates     # what dropping candidates saves
    python benchmarks/friends.py --projection     # what a random projection does to the choice of friends

Training is the time inside the trainer alone; bookkeeping is everything the substitution does. Both are taken in the
same rounds, so that a busy machine slows them alike. Peak memory is that of a fresh process, less that of the same
rounds without a substitution. Clients are in clusters: two classes of twenty each.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

import turnout as to
from turnout.data.federation import Federation
from turnout.machine.profiling import Stopwatch
from turnout.parts.substitution import friends
from turnout.parts.substitution.base import Substitutes
from turnout.parts.updates import Updates
from turnout.rng import rng
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights
from turnout.types import State

CLASSES, FEATURES = 20, 40


@dataclass(frozen=True)
class Clusters:
    """Clients of one cluster have the same two classes; a class is a direction with noise around it."""

    clients: int
    samples: int

    def load(self, seed: int = 0, data_dir: object = None) -> Federation:
        g = rng(seed, "clusters")
        centre_LF = torch.randn(CLASSES, FEATURES, generator=g)
        owner = torch.arange(self.clients).repeat_interleave(self.samples)
        y = (owner % (CLASSES // 2)) * 2 + torch.randint(0, 2, (len(owner),), generator=g)
        x = centre_LF[y] + torch.randn(len(y), FEATURES, generator=g)
        names = [f"{c:06d}" for c in owner.tolist()]
        return to.data.Own(x, y, names, test=(x[:500], y[:500]), test_share=0.0).load(seed)


def experiment(args: argparse.Namespace, substitution: Any) -> to.Experiment:
    participation = to.participation.Dropout(1 - args.present / args.clients)
    local = to.Local(to.SGD(lr=0.05), epochs=args.epochs, batch_size=20)
    return to.Experiment(
        to.World(Clusters(args.clients, args.samples), participation),
        to.models.MLP(328),
        to.Algorithm(local, substitution=substitution, shares=to.weighting.Shares("uniform")),
        rounds=args.rounds,
        runtime=to.runtime.InProcess(device=args.device, threads=args.threads),
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds in this process: seconds of training and of bookkeeping in each, and the process's peak memory."""
    prepared = prepare(
        experiment(args, to.substitution.Spread() if args.part == "dropout" else to.substitution.Friends())
    )
    rows = list(rounds_of(prepared, args.rounds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rows": rows, "peak": peak, "parameters": prepared.model.layout.shared}


def rounds_of(prepared: Weights, rounds: int) -> Any:
    state = prepared.begin()
    for t in range(rounds):
        watch = Stopwatch(prepared.device)
        with watch.running("the rest"):
            state, record = prepared.round(state, t)
        client, friend = record.clients["client"], record.clients.get("friend", torch.tensor([]))
        lent = friend >= 0
        mates = (client[lent] % (CLASSES // 2) == friend[lent] % (CLASSES // 2)) if len(friend) else torch.tensor([])
        yield {
            "training": watch.seconds["local training"],
            "bookkeeping": watch.seconds["similarity"] + watch.seconds["substitution"],
            "answered": record.answered,
            "pairs": record.extra.get("pairs_compared", 0),
            "mates": float(mates.double().mean()) if len(mates) else None,
        }


def elsewhere(args: argparse.Namespace, part: str) -> dict[str, Any]:
    """The same in a fresh process, for its peak memory."""
    values = {k: v for k, v in vars(args).items() if k not in ("part", "candidates", "projection")}
    flags = [f"--{k}={v}" for k, v in values.items() if v is not None]
    found = subprocess.run([sys.executable, __file__, f"--part={part}", *flags], capture_output=True, text=True)
    if found.returncode:
        sys.exit(found.stderr)
    return json.loads(found.stdout)


def compare(args: argparse.Namespace) -> None:
    """Friends beside Spread: time within the rounds, memory between the processes."""
    base, found = elsewhere(args, "dropout"), elsewhere(args, "friends")
    print(f"{found['parameters']:,} parameters, {args.clients:,} clients")
    print("round answered  pairs compared  training s  bookkeeping s  ratio  friends of the own cluster")
    for t, row in enumerate(found["rows"]):
        ratio = row["bookkeeping"] / row["training"]
        mates = "-" if row["mates"] is None else f"{row['mates']:.0%}"
        times = f"{row['training']:11.2f}  {row['bookkeeping']:13.2f}  {ratio:5.2f}"
        print(f"{t:5d} {row['answered']:8,d}  {row['pairs']:14,.0f} {times}  {mates}")
    ratios = [row["bookkeeping"] / row["training"] for row in found["rows"][1:]]
    print(f"median ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")
    peak, without = found["peak"] / 2**30, base["peak"] / 2**30
    print(f"peak memory {peak:.2f} GiB, without friends {without:.2f} GiB: {peak - without:.2f} GiB more")


def candidates(args: argparse.Namespace) -> None:
    """Made-up updates of ten kinds of clients: processor time of comparing them, with and without candidates."""
    torch.set_num_threads(1)
    clients, present, width, g = 1300, 1000, 20_000, torch.Generator().manual_seed(0)
    kept = to.substitution.Candidates(theta_scale=0.05, min_common=2)
    parts = {
        "projected": to.substitution.Friends(),
        "projected, candidates": to.substitution.Friends(candidates=kept),
        "exact": to.substitution.Friends(project_above=float("inf")),
        "exact, candidates": to.substitution.Friends(project_above=float("inf"), candidates=kept),
    }
    states = {name: part.begin(clients, width) for name, part in parts.items()}
    kind_LP = torch.randn(CLASSES // 2, width, generator=g)
    print("round  pairs compared  processor ms")
    for t in range(20):
        client_R = torch.randperm(clients, generator=g)[:present].sort().values
        update_RP = kind_LP[client_R % len(kind_LP)] + torch.randn(present, width, generator=g)
        work_C = torch.zeros(clients, dtype=torch.float64).index_fill(0, client_R, 1.0)
        turnout = to.types.Turnout(torch.arange(clients), work_C, 1.0, work_C, work_C)
        updates = Updates(
            t, 0, client_R, update_RP, kind_LP[0], turnout, torch.searchsorted(turnout.client_C, client_R)
        )
        for name, part in parts.items():
            start = time.thread_time()
            states[name] = part.observe(states[name], updates)
            spent = 1000 * (time.thread_time() - start)
            if t in (0, 4, 9, 19):
                print(f"{t:5d} {states[name]['compared']:15,d} {spent:13.0f}  {name}")


def projection(args: argparse.Namespace) -> None:
    """The same updates compared exactly and by projections of several sizes: who is chosen."""
    args = argparse.Namespace(**vars(args) | {"clients": 400, "present": 200})
    sizes = (256, 1024, 2048, 4096)
    parts = {"exact": to.substitution.Friends(project_above=float("inf"))}
    parts |= {str(size): to.substitution.Friends(project_above=0, project_to=size) for size in sizes}
    states = {name: part.begin(args.clients, 0) for name, part in parts.items()}
    chosen: dict[str, list[torch.Tensor]] = {name: [] for name in parts}
    lost: dict[str, list[float]] = {name: [] for name in parts}

    @dataclass(frozen=True)
    class All(to.substitution.Spread):
        """Spread that shows every round to all of them."""

        def observe(self, state: State, updates: Updates) -> State:
            for name, part in parts.items():
                states[name] = part.observe(states[name], updates)
            return state

        def lend(self, state: State, share_C: torch.Tensor, counts_C: torch.Tensor, updates: Updates) -> Substitutes:
            for name, part in parts.items():
                chosen[name].append(part.lend(states[name], share_C, counts_C, updates).friend_C)
            client_K, exact_KK = friends.similarity(states["exact"])
            place = torch.full((args.clients,), -1).index_copy(0, client_K, torch.arange(len(client_K)))
            best = chosen["exact"][-1]
            for name in parts:
                mine, both = chosen[name][-1], (chosen[name][-1] >= 0) & (best >= 0)
                row = place[updates.turnout.client_C[both]]
                gap = exact_KK[row, place[best[both]]] - exact_KK[row, place[mine[both]]]
                lost[name].append(float(gap.mean()) if len(gap) else 0.0)
            return super().lend(state, share_C, counts_C, updates)

    prepared = prepare(experiment(args, All()))
    state = prepared.begin()
    for t in range(args.rounds):
        state, _ = prepared.round(state, t)
    cluster = torch.arange(args.clients) % (CLASSES // 2)
    print(f"{prepared.model.layout.shared:,} parameters, {args.clients} clients, {args.present} present a round")
    print("compared by  round  same friend as exact  own cluster  similarity lost (exact R)")
    for name in parts:
        for t in (1, args.rounds - 1):
            friend, exact = chosen[name][t], chosen["exact"][t]
            lent = (friend >= 0) & (exact >= 0)
            equal, own = (friend[lent] == exact[lent]).double().mean(), (cluster[friend[lent]] == cluster[lent])
            print(f"{name:>11} {t:6d} {equal:21.0%} {own.double().mean():12.0%} {lost[name][t]:26.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--present", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=100, help="of each client")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--projection", action="store_true")
    parser.add_argument("--part", choices=("dropout", "friends"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(measure(args)))
    elif args.projection:
        projection(args)
    elif args.candidates:
        candidates(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
