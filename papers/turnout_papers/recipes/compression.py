"""Paper 001's messages, sparse and ternary both ways: what a round costs in bytes, and what that does to it.

Clients with few classes each, half of them away every round, scheme C. The paper gives neither the shares that are sent
nor rounds, rates or batches: they are parameters here.
"""

from __future__ import annotations

import turnout.models as models
from turnout.data import CIFAR10, MNIST, Digits
from turnout.data.partition import Classes
from turnout.experiment import Algorithm, DataSpec, Evaluate, Experiment, Model, World
from turnout.parts.compression.base import Compression, Dense
from turnout.parts.compression.quantise import Quantise
from turnout.parts.compression.ternary import SparseTernary, TopK
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.weighting import ByWork
from turnout.settings import InProcess
from turnout.world.participation import Dropout


def compression(
    keep: float = 0.05, clients: int = 20, classes: int = 2, away: float = 0.5, rounds: int = 100
) -> dict[str, Experiment]:
    """Dense, top-k, 8-bit and sparse ternary messages on the embedded digits, a small CNN; in seconds, no downloads."""
    data = Digits(clients=clients, partition=Classes(per_client=classes), test_share=0.0)
    local = Local(SGD(lr=0.2), epochs=2, batch_size=10)
    made = _methods(data, models.digits_cnn(), keep, away, local, rounds)
    return {name: e.but(runtime=InProcess(device="cpu", threads=1)) for name, e in made.items()}


def mnist_compression(
    keep: float = 0.01, clients: int = 100, classes: int = 2, away: float = 0.5, rounds: int = 200
) -> dict[str, Experiment]:
    """The same on MNIST, 100 clients, the CNN of FDMS."""
    data = MNIST(clients=clients, partition=Classes(per_client=classes), test_share=0.0)
    return _methods(data, models.fdms_mnist_cnn(), keep, away, Local(SGD(lr=0.05), epochs=1, batch_size=20), rounds)


def cifar_compression(
    keep: float = 0.01, clients: int = 100, classes: int = 5, away: float = 0.5, rounds: int = 500
) -> dict[str, Experiment]:
    """The same on CIFAR-10 with the simplified VGG11."""
    data = CIFAR10(clients=clients, partition=Classes(per_client=classes), test_share=0.0)
    return _methods(data, models.vgg11(), keep, away, Local(SGD(lr=0.1), epochs=1, batch_size=20), rounds)


def _methods(
    data: DataSpec, model: Model, keep: float, away: float, local: Local, rounds: int
) -> dict[str, Experiment]:
    """One experiment per way of sending, all with the same turnout."""
    kinds: dict[str, Compression] = {
        "dense": Dense(),
        "8 bits": Quantise(),
        "top-k": TopK(keep),
        "ternary": SparseTernary(keep),
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
