"""Experiments on the embedded digits for tests of runtimes and pages, with parts that keep state or change messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import turnout as to
from turnout.experiment import Algorithm, Evaluate, Experiment, World
from turnout.parts.compression.lossy import SparseTernary
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD, Adam
from turnout.parts.substitution.base import NoSubstitution, Spread, Stale
from turnout.parts.substitution.friends import Friends
from turnout.parts.terms.control_variates import Scaffold
from turnout.parts.weighting import ByShare, ByWork, FedAvg
from turnout.running.runs import run
from turnout.scores.settings import Distil, Scores, Uses
from turnout.settings import InProcess
from turnout.world.events import Join

ALONE = InProcess(device="cpu", threads=1)
LABELS = (("3", "5"), ("5", "8"), ("8", "9"))  # four digits that look alike


def ternary(rounds: int = 100) -> Experiment:
    """Sparse ternary messages, half of the clients away: clients keep residuals."""
    data = to.data.Digits(clients=20, partition=to.partition.Classes(per_client=2), test_share=0.0)
    local = Local(SGD(lr=0.2), epochs=2, batch_size=10)
    algorithm = Algorithm(local, weighting=ByWork(), compression=SparseTernary(0.05))
    world = World(data, to.participation.Dropout(0.5))
    evaluate = Evaluate(every=max(1, rounds // 50))
    return Experiment(world, to.models.digits_cnn(), algorithm, rounds=rounds, evaluate=evaluate, runtime=ALONE)


def scaffold(rounds: int = 60) -> Experiment:
    """SCAFFOLD: clients keep control variates, and send a change of them beside the update."""
    data = to.data.Digits(clients=20, partition=to.partition.Classes(per_client=2))
    algorithm = Algorithm(Local(SGD(lr=0.05), steps=10, batch_size=10), terms=(Scaffold(),), weighting=FedAvg())
    world = World(data, to.participation.Dropout(0.3))
    return Experiment(world, to.models.MLP(32), algorithm, rounds=rounds, runtime=ALONE)


def substitutes() -> dict[str, Experiment]:
    """Four answers to clients that drop out in clusters: everybody there, missing shares spread, stale, friends."""
    data = to.data.Digits(clients=20, partition=to.partition.Clustered(), test_share=0.0)
    away = to.participation.Stratified(0.7, full_first_round=True)
    local = Local(SGD(lr=0.1), epochs=2, batch_size=10)
    methods = {"Full": NoSubstitution(), "Dropout": Spread(), "Stale": Stale(), "Friends": Friends()}
    return {
        name: Experiment(
            World(data, to.participation.Always() if name == "Full" else away),
            to.models.MLP(50),
            Algorithm(local, substitution=method, weighting=ByShare()),
            rounds=50,
        )
        for name, method in methods.items()
    }


def arrival(at: int) -> Experiment:
    """The last of 30 devices joins in round `at`."""
    data = to.data.Synthetic(clients=30, sizes=to.data.Equal(125), test_share=0.2)
    algorithm = Algorithm(Local(SGD(lr=1.0), epochs=5, batch_size=20), weighting=ByWork())
    world = World(data, to.participation.Traces(first=5), (Join(29, at),))
    return Experiment(world, to.models.Logistic(), algorithm, rounds=70)


def three_users(distil: bool = True) -> Experiment:
    """The score track: three users with two labels each and models of their own, one of which changes."""
    cnn = to.models.CNN((16, 32), kernel=3, padding=1)
    models = (Uses("ann", cnn), Uses("ann", to.models.MLP(16, 16, 32), since=2), Uses("bob", to.models.MLP(8)))
    local = Local(Adam(1e-2, 0.9, 0.999), epochs=5, batch_size=2)
    scores = Scores(local=local, models=models, distil=Distil(batch_size=16) if distil else None)
    data = to.data.Arriving(to.data.Digits(), LABELS, 30, 80, mix=5.0, names=("ann", "bob", "eve"))
    return Experiment(World(data), cnn, scores, rounds=15, runtime=ALONE)


def run_many(variants: dict[str, Experiment], seeds: list[int], out: Path, **options: Any) -> list[to.Run]:
    """Run variants and seeds; the runs in the order made."""
    return list(run(variants, out, seeds=seeds, **options))
