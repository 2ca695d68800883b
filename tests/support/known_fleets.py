"""Fleets with a known answer, to check the advice on: a log, an experiment, and which candidates are right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

import turnout.models as models
from turnout.data import Digits, Equal, Synthetic
from turnout.data.partition import IID, Classes, Clustered, Partition
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.fleet.advice import Advice
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.schedules import InverseClock
from turnout.parts.weighting import FedAvg, Weighting
from turnout.rng import uniform
from turnout.settings import InProcess
from turnout.types import Turnout
from turnout.world.log import write_turnout

LOG_ROUNDS = 120
CLIENTS = 20
CLUSTERS = 5

WorkOf = Callable[[random.Random, int, int], float]  # of a client in a round


@dataclass(frozen=True)
class KnownFleet:
    """A fleet: the work of each client in each round, the data, the aim, and the right answers among `candidates`.

    Right means: what is recommended is one of `right`, and if one is ahead it is one of them too.
    """

    name: str
    data: DataSpec
    work: WorkOf
    candidates: Sequence[str]
    right: Sequence[str]
    aim: str = "accuracy"
    rounds: int = 30
    model: Model = field(default_factory=lambda: models.MLP(32))
    local: Local = field(default_factory=lambda: Local(SGD(lr=0.1), epochs=2, batch_size=10))

    def write_log(self, path: Path, seed: int = 0) -> Path:
        draw = random.Random(seed)
        write_turnout(path, [(t, c, self.work(draw, t, c)) for t in range(LOG_ROUNDS) for c in range(CLIENTS)])
        return path

    def experiment(self) -> Experiment:
        """With a small model: each run takes a fraction of a second."""
        runtime = InProcess(device="cpu", threads=1)
        return Experiment(World(self.data), self.model, Algorithm(self.local), rounds=self.rounds, runtime=runtime)

    def is_right(self, advice: Advice) -> bool:
        return advice.recommended in self.right and (advice.ahead is None or advice.ahead in self.right)

    def names_a_wrong_winner(self, advice: Advice) -> bool:
        return advice.ahead is not None and advice.ahead not in self.right


@dataclass(frozen=True)
class Shaken(Weighting):
    """FedAvg whose weights are shaken at random, for each number in another way: candidates that are truly alike."""

    number: int

    def server_scale(self, share_C: Tensor, counts_C: Tensor, turnout: Turnout, lent: bool) -> Tensor:
        seen = repr((turnout.client_C.tolist(), turnout.work_C.tolist(), share_C.tolist()))
        shake_C = uniform(self.number, "shaken", seen, ids=turnout.client_C)
        return FedAvg().server_scale(share_C, counts_C, turnout, lent) * (0.5 + shake_C)


def _always(draw: random.Random, t: int, client: int) -> float:
    return 1.0


def _little_of_some(draw: random.Random, t: int, client: int) -> float:
    """Half of the clients do a tenth of the work."""
    return 1.0 if client < CLIENTS // 2 else draw.uniform(0.05, 0.15)


def half_there(draw: random.Random, t: int, client: int) -> float:
    return float(draw.random() < 0.7)


def _one_of_each(draw: random.Random, t: int, client: int) -> float:
    """Two clusters are nearly always there; of each of the others one or two clients, at random, never none."""
    size = CLIENTS // CLUSTERS
    cluster, place = divmod(client, size)
    if cluster < 2:
        return float(draw.random() < 0.95)
    order = random.Random(1000 * t + cluster).sample(range(size + 1), size + 1)
    return float(place in order[:2])


def _digits(partition: Partition) -> Digits:
    return Digits(clients=CLIENTS, partition=partition)


# Clients whose best models differ, and too few dimensions to serve all of them: whose work counts decides whom the
# common model serves. (Where one model can serve all, scheme B with a larger learning rate does as well as scheme C.)
_CONFLICT = Synthetic(clients=CLIENTS, sizes=Equal(120), dimension=10, classes=5, central_clients=CLIENTS)

KNOWN = (
    KnownFleet("all finish", _digits(IID()), _always,
               ["FedAvg", "scheme A", "scheme B", "scheme C", "FedNova", "friends", "stale", "ternary"], ["FedAvg"]),
    KnownFleet("work goes with data", _CONFLICT, _little_of_some,
               ["scheme B", "scheme C", "FedNova"], ["scheme C", "FedNova"], rounds=60, model=models.Logistic(),
               local=Local(SGD(lr=0.3), epochs=5, batch_size=20, schedule=InverseClock())),
    KnownFleet("clusters, never all away", _digits(Clustered(CLUSTERS, 2)), _one_of_each,
               ["FedAvg", "scheme B", "friends"], ["friends"]),
    KnownFleet("labels of their own", _digits(Classes(per_client=2)), half_there,
               ["FedAvg", "scheme C", "friends", "personal last layer"], ["personal last layer"], aim="personal"),
    KnownFleet("narrow links", _digits(Classes(per_client=4)), half_there,
               ["FedAvg", "scheme C", "friends", "ternary", "ternary + C"], ["ternary", "ternary + C"], aim="bytes",
               rounds=60),
)  # fmt: skip
