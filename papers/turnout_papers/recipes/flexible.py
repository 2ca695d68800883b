"""Flexible device participation (Ruan, Zhang, Liang, Joe-Wong, AISTATS 2021): schemes A, B, C; arrivals; departures.

Devices finish part of the work, each after one of the paper's traces. Scheme A counts complete work only, B every
update as it is, C scaled by E / s; under B and C the share of an absent device keeps the old model. The settings are
those of Table 3; what the paper leaves open (E, the largest size) is a parameter here.
"""

from __future__ import annotations

from typing import Any

import turnout.models as models
from turnout import SGD, Algorithm, Experiment, InverseClock, Join, Leave, Local, Membership, World
from turnout.data import EMNIST, MNIST, Equal, Pareto, Synthetic
from turnout.data.partition import IID, OneLabel
from turnout.experiment import DataSpec, Model
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, Weighting
from turnout.world.events import Event
from turnout.world.participation import Traces

SCHEMES: dict[str, Weighting] = {"A": CompleteOnly(), "B": ByShare(), "C": ByWork()}
# One label a device; the official test set is dealt to the devices, so that it follows who is there.
ONE_LABEL: dict[str, Any] = {"partition": OneLabel(), "test_share": 0.0, "local_test": "official"}


def participation(
    traces: int = 5, iid: bool = False, clients: int = 50, epochs: int = 5, cap: int = 300, rounds: int = 100
) -> dict[str, Experiment]:
    """Schemes A, B, C on SYNTHETIC(1,1), 50 devices on five traces; in seconds, without downloads.

    Scheme A uses complete work only, B every update as it is, C scales it by E / s; under B and C the share of an
    absent device keeps the old model (Ruan et al., flexible device participation). A device has at most `cap` samples;
    `iid` is what that paper calls so, SYNTHETIC(0,0).
    """
    spread = 0.0 if iid else 1.0
    world = World(Synthetic(alpha=spread, beta=spread, clients=clients, sizes=Pareto(cap=cap)), Traces(first=traces))
    return compare_schemes(world, models.Logistic(), lr=1.0, batch_size=20, epochs=epochs, rounds=rounds)


def compare_schemes(
    world: World, model: Model, *, lr: float, batch_size: int, epochs: int, rounds: int
) -> dict[str, Experiment]:
    """One experiment per scheme: plain SGD, `epochs` a round, learning rate lr / (t + 1)."""
    local = Local(SGD(lr=lr), epochs=epochs, batch_size=batch_size, schedule=InverseClock())
    return {
        scheme: Experiment(world, model, Algorithm(local=local, weighting=weighting), rounds=rounds)
        for scheme, weighting in SCHEMES.items()
    }


def mnist_participation(
    traces: int = 5, iid: bool = False, clients: int = 100, epochs: int = 5, cap: int = 2000, rounds: int = 200
) -> dict[str, Experiment]:
    """Schemes A, B, C on MNIST, 100 devices with one label each, two hidden layers of 200 (Table 3)."""
    data = MNIST(clients=clients, partition=IID() if iid else OneLabel(), sizes=Pareto(cap=cap), test_share=0.0)
    world = World(data, Traces(first=traces))
    return compare_schemes(world, models.MLP(200, 200), lr=2e-3, batch_size=10, epochs=epochs, rounds=rounds)


def emnist_participation(
    traces: int = 5, iid: bool = False, clients: int = 62, epochs: int = 5, cap: int = 2000, rounds: int = 200
) -> dict[str, Experiment]:
    """Schemes A, B, C on EMNIST, 62 devices with one label each, a CNN (Table 3)."""
    data = EMNIST(clients=clients, partition=IID() if iid else OneLabel(), sizes=Pareto(cap=cap), test_share=0.0)
    world = World(data, Traces(first=traces))
    return compare_schemes(world, models.mcmahan_cnn(), lr=5e-4, batch_size=10, epochs=epochs, rounds=rounds)


def arrival(
    at: int = 30, clients: int = 30, samples: int = 125, epochs: int = 5, rounds: int = 70
) -> dict[str, Experiment]:
    """Fast and vanilla reboot on SYNTHETIC(1,1): the last of 30 devices joins in round `at` (Table 4)."""
    data = Synthetic(clients=clients, sizes=Equal(samples), test_share=0.2)
    return _reboots(data, models.Logistic(), 1.0, 20, (Join(clients - 1, at),), epochs, rounds)


def mnist_arrival(
    at: int = 30, clients: int = 10, samples: int = 600, epochs: int = 5, rounds: int = 150
) -> dict[str, Experiment]:
    """Fast and vanilla reboot on MNIST: the last of ten devices with one label each joins in round `at` (Table 4)."""
    data = MNIST(clients=clients, sizes=Equal(samples), **ONE_LABEL)
    return _reboots(data, models.MLP(200, 200), 2e-3, 10, (Join(clients - 1, at),), epochs, rounds)


def emnist_arrival(
    at: int = 30, clients: int = 10, samples: int = 250, epochs: int = 5, rounds: int = 150
) -> dict[str, Experiment]:
    """Fast and vanilla reboot on EMNIST: the last of ten devices with one label each joins in round `at` (Table 4)."""
    data = EMNIST(clients=clients, sizes=Equal(samples), **ONE_LABEL)
    return _reboots(data, models.mcmahan_cnn(), 5e-4, 10, (Join(clients - 1, at),), epochs, rounds)


def departure(
    at: int = 30, spread: float = 1.0, clients: int = 30, samples: int = 125, epochs: int = 5, rounds: int = 110
) -> dict[str, Experiment]:
    """Include, exclude or decide on SYNTHETIC(α, β), α = β = `spread`: one of 30 devices leaves in round `at`."""
    data = Synthetic(spread, spread, clients, sizes=Equal(samples), test_share=0.2)
    made = _reboots(data, models.Logistic(), 1.0, 20, (Leave(clients - 1, at),), epochs, rounds)["fast-reboot"]
    ways = ("include", "exclude", "decide")
    return {leave: made.but(**{"algorithm.membership": Membership(leave=leave)}) for leave in ways}


def _reboots(
    data: DataSpec, model: Model, lr: float, batch_size: int, events: tuple[Event, ...], epochs: int, rounds: int
) -> dict[str, Experiment]:
    """The setting of sections 5.3 and 5.4: scheme C, the first five traces, equal sizes, η0 / (clock + 1)."""
    local = Local(SGD(lr=lr), epochs=epochs, batch_size=batch_size, schedule=InverseClock())
    world = World(data, Traces(first=5), events)
    return {
        join: Experiment(
            world, model, Algorithm(local, weighting=ByWork(), membership=Membership(join=join)), rounds=rounds
        )
        for join in ("fast-reboot", "vanilla")
    }
