"""FDMS, friend model substitution (Wang and Xu): the update of the most similar client stands in for a missing one.

Five clusters of clients, each with two classes of its own; some drop out every round, at least one of each cluster
stays. Full has all clients present, Dropout ignores the missing, Stale repeats what they sent last. As in the authors'
code: uniform shares, server learning rate 1, all clients present in round 0.
"""

from __future__ import annotations

import turnout.models as models
from turnout.data import MNIST, Digits, Equal
from turnout.data.partition import Clustered
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.substitution.base import NoSubstitution, Spread, Substitution
from turnout.parts.substitution.friends import Friends
from turnout.parts.substitution.stale import Stale
from turnout.parts.weighting import ByShare, Shares
from turnout.world.participation import Always, Participation, Stratified

LOCAL_TEST = "last"  # a client trains on the first 80 % of its samples, sorted by class, as in the authors' code


def friends(alpha: float = 0.7, clients: int = 20, epochs: int = 2, rounds: int = 50) -> dict[str, Experiment]:
    """Full, Dropout, Stale and friends on clustered Digits, seven in ten absent; in seconds, without downloads."""
    data = Digits(clients=clients, partition=Clustered(), test_share=0.0)
    return _methods(data, models.MLP(50), alpha, Local(SGD(lr=0.1), epochs=epochs, batch_size=10), rounds)


def mnist_friends(alpha: float = 0.7, clients: int = 20, epochs: int = 2, rounds: int = 100) -> dict[str, Experiment]:
    """The same on clustered MNIST, 200 samples a client, a CNN with dropout (Figure 1)."""
    data = MNIST(clients=clients, partition=Clustered(), sizes=Equal(200 * 20 // clients), local_test=LOCAL_TEST)
    local = Local(SGD(lr=0.1), epochs=epochs, batch_size=5)
    return _methods(data, models.fdms_mnist_cnn(dropout=0.5), alpha, local, rounds)


def _methods(data: DataSpec, model: Model, alpha: float, local: Local, rounds: int) -> dict[str, Experiment]:
    """One experiment per method, all with the same turnout."""
    away: Participation = Stratified(alpha, full_first_round=True)
    methods: dict[str, Substitution] = {"Full": NoSubstitution(), "Dropout": Spread(), "Stale": Stale()}
    return {
        name: Experiment(
            World(data, Always() if name == "Full" else away), model, algorithm(local, method), rounds=rounds
        )
        for name, method in {**methods, "Friends": Friends()}.items()
    }


def algorithm(local: Local, substitution: Substitution) -> Algorithm:
    """Uniform shares, and a server learning rate of 1."""
    return Algorithm(local, substitution=substitution, weighting=ByShare(), shares=Shares(by="uniform"))
