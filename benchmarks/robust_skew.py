"""Robust aggregations against attacks, where clients are alike and where each has two of ten classes.

    python benchmarks/robust_skew.py [--clients alike skewed] [--rounds 40] [--seeds 3] [--only median RFA]

Digits over 20 clients, of which 20 % attack; logistic regression, the mean over those that replied, one vote each. A
cell is the test accuracy in percent, the mean over the last fifth of the rounds and over the seeds, and in brackets the
lowest seed. "friends" columns: half of the clients are absent in each round, and a friend stands in for each.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from statistics import mean

import torch
from torch import Tensor

import turnout as to
from turnout.running.tracks.prepare import prepare
from turnout.world.attacks import Attack, Scene

RULES: dict[str, to.aggregation.Aggregation] = {
    "mean": to.aggregation.WeightedSum(),
    "median": to.aggregation.CoordinateMedian(),
    "trimmed mean": to.aggregation.TrimmedMean(0.2),
    "RFA": to.aggregation.GeometricMedian(),
    "Krum": to.aggregation.Krum(0.2),
    "multi-Krum": to.aggregation.MultiKrum(0.2),
    "norm clip": to.aggregation.NormClip(),
    "centred clip": to.aggregation.CentredClip(),
    "nearest mixing": to.aggregation.NearestMixing(),
    "the same without buckets": to.aggregation.NearestMixing(bucket=1),
}
HOSTILE = 0.2


@dataclass(frozen=True)
class Stale(Attack):
    """Sends the update of its first round again and again."""

    first: dict[int, Tensor] = field(default_factory=dict)

    def update(self, scene: Scene) -> Tensor:
        client_h = scene.client_R[scene.hostile_R].tolist()
        return torch.stack(
            [self.first.setdefault(c, row.clone()) for c, row in zip(client_h, scene.own_hP, strict=True)]
        )


ATTACKS = {
    "no attacker": None,
    "sign flip": lambda: to.attacks.SignFlip(4.0),
    "mean − sd · sign": lambda: to.attacks.Opposed(1.0),
    "inner product": lambda: to.attacks.InnerProduct(1.0),
    "stale": Stale,
    "friends, no attacker": None,
    "friends, hostile friend": lambda: to.attacks.FalseFriend(4.0),
}


def accuracy(rule: str, attack: str, skewed: bool, rounds: int, seed: int) -> float:
    """Mean accuracy over the last fifth of the rounds, in percent."""
    partition = to.partition.Classes(per_client=2) if skewed else to.partition.IID()
    data = to.data.Digits(clients=20, test_share=0.0, partition=partition)
    make = ATTACKS[attack]
    hostile = {} if make is None else {"attack": (make(),), "attackers": HOSTILE}
    parts = {"weighting": to.weighting.FedAvg(), "aggregation": RULES[rule]}
    there = to.participation.Always()
    if attack.startswith("friends"):
        there, parts = to.participation.Dropout(0.5), parts | {"substitution": to.substitution.Friends()}
    algorithm = to.Algorithm(
        to.Local(to.SGD(lr=0.1), epochs=2, batch_size=10), shares=to.weighting.Shares(by="uniform"),
        nonfinite="absent", **parts,
    )  # fmt: skip
    experiment = to.Experiment(
        to.World(data, there, **hostile), to.models.Logistic(), algorithm, rounds=rounds, seed=seed,
        runtime=to.runtime.InProcess(device="cpu", threads=1),
    )  # fmt: skip
    prepared = prepare(experiment)
    server, found = prepared.begin(), []
    for t in range(rounds):
        server, _ = prepared.round(server, t)
        if t >= rounds - rounds // 5:
            found.append(100 * float(prepared.evaluate(server, t).values["global_accuracy"]))
    return mean(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", choices=("alike", "skewed"), default=["alike", "skewed"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=RULES, default=list(RULES))
    given = parser.parse_args()
    for kind in given.clients:
        print(f"\n| {kind} clients | " + " | ".join(ATTACKS) + " |\n|" + "---|" * (len(ATTACKS) + 1))
        for rule in given.only:
            cells = []
            for attack in ATTACKS:
                reached = [accuracy(rule, attack, kind == "skewed", given.rounds, seed) for seed in range(given.seeds)]
                cells.append(f"{mean(reached):.0f} ({min(reached):.0f})")
            print(f"| {rule} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
