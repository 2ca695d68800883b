"""Paper 000, flexible device participation (Ruan, Zhang, Liang, Joe-Wong, AISTATS 2021): schemes A, B and C compared.

Devices finish part of the work, each after one of the paper's traces. Scheme A counts those who finish, B everybody's
update as it is, C scaled by E / s. The settings are those of Table 3; what the paper leaves open (E, the largest size)
is a parameter here.
"""

from __future__ import annotations

from turnout import models
from turnout.data import EMNIST, MNIST, Pareto, Synthetic
from turnout.data.partition import IID, OneLabel
from turnout.local import SGD, InverseClock, Local
from turnout.participation import Traces
from turnout.settings import Algorithm, DataSpec, Experiment, Model, World
from turnout.weighting import ByShare, ByWork, CompleteOnly, Weighting

SCHEMES: dict[str, Weighting] = {"A": CompleteOnly(), "B": ByShare(), "C": ByWork()}


def participation(
    traces: int = 5, iid: bool = False, clients: int = 50, epochs: int = 5, cap: int = 300, rounds: int = 100
) -> dict[str, Experiment]:
    """Schemes A, B, C on SYNTHETIC(1,1), 50 devices on five traces; in seconds, without downloads.

    Smaller than the paper's: a device has at most `cap` samples, and 100 rounds show what 200 do. `iid` is what the
    paper calls so, SYNTHETIC(0,0).
    """
    spread = 0.0 if iid else 1.0
    data = Synthetic(alpha=spread, beta=spread, clients=clients, sizes=Pareto(cap=cap))
    return _schemes(data, models.Logistic(), lr=1.0, batch_size=20, traces=traces, epochs=epochs, rounds=rounds)


def mnist_participation(
    traces: int = 5, iid: bool = False, clients: int = 100, epochs: int = 5, cap: int = 2000, rounds: int = 200
) -> dict[str, Experiment]:
    """Schemes A, B, C on MNIST, 100 devices with one label each, two hidden layers of 200 (Table 3)."""
    data = MNIST(clients=clients, partition=IID() if iid else OneLabel(), sizes=Pareto(cap=cap), test_share=0.0)
    model = models.MLP(200, 200)
    return _schemes(data, model, lr=2e-3, batch_size=10, traces=traces, epochs=epochs, rounds=rounds)


def emnist_participation(
    traces: int = 5, iid: bool = False, clients: int = 62, epochs: int = 5, cap: int = 2000, rounds: int = 200
) -> dict[str, Experiment]:
    """Schemes A, B, C on EMNIST, 62 devices with one label each, a CNN (Table 3)."""
    data = EMNIST(clients=clients, partition=IID() if iid else OneLabel(), sizes=Pareto(cap=cap), test_share=0.0)
    return _schemes(data, models.mcmahan_cnn(), 5e-4, batch_size=10, traces=traces, epochs=epochs, rounds=rounds)


def _schemes(
    data: DataSpec, model: Model, lr: float, batch_size: int, traces: int, epochs: int, rounds: int
) -> dict[str, Experiment]:
    """One experiment per scheme: plain SGD, `epochs` a round, η0 / (t + 1)."""
    local = Local(SGD(lr=lr), epochs=epochs, batch_size=batch_size, schedule=InverseClock())
    world = World(data, Traces(first=traces))
    return {
        scheme: Experiment(world, model, Algorithm(local=local, weighting=weighting), rounds=rounds)
        for scheme, weighting in SCHEMES.items()
    }
