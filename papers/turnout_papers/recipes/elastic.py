"""EFL, elastic federated learning (Ma, Lu, Lu, Li, Yi, Cui): the elastic term, ternary messages, scheme C.

`elastic` has two classes a client, and devices that finish part of the work. `compression` is about bytes: clients with
few classes each, half of them away every round, scheme C. The paper gives neither λ nor the share of entries that is
sent (`keep`), E, learning rates, rounds or batches: these are ours.
"""

from __future__ import annotations

import turnout as to
import turnout.models as models
from turnout import SGD, Algorithm, Evaluate, Experiment, Local, World
from turnout.data import CIFAR10, MNIST, Digits
from turnout.data.partition import Classes
from turnout.experiment import DataSpec, Model
from turnout.parts.weighting import ByWork, CompleteOnly
from turnout.world.participation import Dropout, Traces
from turnout_papers.recipes import on_one_core


def elastic(
    strength: float = 0.03, clients: int = 20, epochs: int = 5, keep: float = 0.1, rounds: int = 40
) -> dict[str, Experiment]:
    """FedAvg, scheme C, C with the elastic term and with ternary messages too, on the digits; without downloads."""
    data = Digits(clients=clients, partition=Classes(per_client=2), local_test="official")
    return _parts(data, models.CNN((8, 16), kernel=3, padding=1), to.terms.Elastic(strength), epochs, 10, keep, rounds)


def mnist_elastic(
    strength: float = 0.01, clients: int = 100, epochs: int = 5, keep: float = 0.01, rounds: int = 100
) -> dict[str, Experiment]:
    """The same on MNIST with McMahan's CNN."""
    data = MNIST(clients=clients, partition=Classes(per_client=2), local_test="official")
    return _parts(data, models.mcmahan_cnn(), to.terms.Elastic(strength), epochs, 20, keep, rounds)


def _parts(
    data: DataSpec, model: Model, term: to.terms.Elastic, epochs: int, batch_size: int, keep: float, rounds: int
) -> dict[str, Experiment]:
    """EFL part by part; its FedAvg is the mean over the clients that finish."""
    world, local = World(data, Traces(first=5)), Local(SGD(lr=0.1), epochs=epochs, batch_size=batch_size)
    algorithms = {
        "FedAvg": Algorithm(local, weighting=CompleteOnly(), substitution=to.substitution.Spread()),
        "scheme C": Algorithm(local, weighting=ByWork()),
        "elastic": Algorithm(local, weighting=ByWork(), terms=(term,)),
        "EFL": Algorithm(local, weighting=ByWork(), terms=(term,), compression=to.compression.SparseTernary(keep)),
    }
    return {name: Experiment(world, model, algorithm, rounds=rounds) for name, algorithm in algorithms.items()}


def compression(
    keep: float = 0.05, clients: int = 20, classes: int = 2, away: float = 0.5, rounds: int = 100
) -> dict[str, Experiment]:
    """Dense, top-k, 8-bit and sparse ternary messages on the embedded digits, a small CNN; in seconds, no downloads."""
    data = Digits(clients=clients, partition=Classes(per_client=classes), test_share=0.0)
    local = Local(SGD(lr=0.2), epochs=2, batch_size=10)
    return on_one_core(_messages(data, models.digits_cnn(), keep, away, local, rounds))


def mnist_compression(
    keep: float = 0.01, clients: int = 100, classes: int = 2, away: float = 0.5, rounds: int = 200
) -> dict[str, Experiment]:
    """The same on MNIST, 100 clients, the CNN of FDMS."""
    data = MNIST(clients=clients, partition=Classes(per_client=classes), test_share=0.0)
    return _messages(data, models.fdms_mnist_cnn(), keep, away, Local(SGD(lr=0.05), epochs=1, batch_size=20), rounds)


def cifar_compression(
    keep: float = 0.01, clients: int = 100, classes: int = 5, away: float = 0.5, rounds: int = 500
) -> dict[str, Experiment]:
    """The same on CIFAR-10 with the simplified VGG11."""
    data = CIFAR10(clients=clients, partition=Classes(per_client=classes), test_share=0.0)
    return _messages(data, models.vgg11(), keep, away, Local(SGD(lr=0.1), epochs=1, batch_size=20), rounds)


def _messages(
    data: DataSpec, model: Model, keep: float, away: float, local: Local, rounds: int
) -> dict[str, Experiment]:
    """One experiment per way of sending, all with the same turnout."""
    kinds: dict[str, to.compression.Compression] = {
        "dense": to.compression.Dense(),
        "8 bits": to.compression.Quantise(),
        "top-k": to.compression.TopK(keep),
        "ternary": to.compression.SparseTernary(keep),
    }
    return {
        name: Experiment(
            World(data, Dropout(away)),
            model,
            Algorithm(local, weighting=ByWork(), compression=kind),
            rounds=rounds,
            evaluate=Evaluate(every=max(1, rounds // 50)),
        )
        for name, kind in kinds.items()
    }
