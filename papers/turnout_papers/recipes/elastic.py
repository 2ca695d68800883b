"""Paper 001, elastic federated learning (Ma, Lu, Lu, Li, Yi, Cui): the elastic term, ternary messages, scheme C.

Two classes a client, and devices that finish part of the work. The paper gives neither λ nor q, E, learning rates or
batches: these are ours.
"""

from __future__ import annotations

import turnout.models as models
from turnout.data import MNIST, Digits
from turnout.data.partition import Classes
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.parts.compression.ternary import SparseTernary
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.substitution.base import Spread
from turnout.parts.terms.elastic import Elastic
from turnout.parts.weighting import ByWork, CompleteOnly
from turnout.world.participation import Traces


def elastic(
    strength: float = 0.03, clients: int = 20, epochs: int = 5, keep: float = 0.1, rounds: int = 40
) -> dict[str, Experiment]:
    """FedAvg, scheme C, C with the elastic term and with ternary messages too, on the digits; without downloads."""
    data = Digits(clients=clients, partition=Classes(per_client=2), local_test="official")
    return _parts(data, models.CNN((8, 16), kernel=3, padding=1), Elastic(strength), epochs, 10, keep, rounds)


def mnist_elastic(
    strength: float = 0.01, clients: int = 100, epochs: int = 5, keep: float = 0.01, rounds: int = 100
) -> dict[str, Experiment]:
    """The same on MNIST with McMahan's CNN."""
    data = MNIST(clients=clients, partition=Classes(per_client=2), local_test="official")
    return _parts(data, models.mcmahan_cnn(), Elastic(strength), epochs, 20, keep, rounds)


def _parts(
    data: DataSpec, model: Model, term: Elastic, epochs: int, batch_size: int, keep: float, rounds: int
) -> dict[str, Experiment]:
    """EFL part by part; its FedAvg is the mean over those who finish."""
    world, local = World(data, Traces(first=5)), Local(SGD(lr=0.1), epochs=epochs, batch_size=batch_size)
    algorithms = {
        "FedAvg": Algorithm(local, weighting=CompleteOnly(), substitution=Spread()),
        "scheme C": Algorithm(local, weighting=ByWork()),
        "elastic": Algorithm(local, weighting=ByWork(), terms=(term,)),
        "EFL": Algorithm(local, weighting=ByWork(), terms=(term,), compression=SparseTernary(keep)),
    }
    return {name: Experiment(world, model, algorithm, rounds=rounds) for name, algorithm in algorithms.items()}
