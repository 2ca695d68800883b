"""FDMS, friend model substitution (Wang and Xu): the update of the most similar client stands in for a missing one.

Five clusters of clients, each with two classes of its own; some drop out every round, at least one of each cluster
stays. Full has all clients present, Dropout ignores the missing, Stale repeats what they sent last. As in the authors'
code: uniform shares, all clients present in round 0, and, unless a setting says otherwise, server learning rate 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import turnout.models as models
from turnout.data import CIFAR10, MNIST, Digits, Equal, FashionMNIST
from turnout.data.partition import Clustered, Partition, Shards
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.server import ServerSGD
from turnout.parts.substitution.base import NoSubstitution, Spread, Stale, Substitution
from turnout.parts.substitution.friends import Friends
from turnout.parts.terms.baselines import Proximal
from turnout.parts.weighting import ByShare, Shares
from turnout.settings import InProcess
from turnout.world.participation import Always, Dropout, Participation, Stratified
from turnout_papers.recipes import ONE_CORE

LOCAL_TEST = "last"  # a client trains on the first 80 % of its samples, sorted by class, as in the authors' code
METHODS: dict[str, Substitution] = {"Full": NoSubstitution(), "Dropout": Spread(), "Stale": Stale(), "FDMS": Friends()}
AUTHORS_STALE = "Stale weights"  # what the authors' code calls Stale: the last weights, not the last update
MU = 0.2  # of FedProx
# partition of the general setting, and of its other levels: (partitions a client picks, partitions of CIFAR-10)
GENERAL = {"general": (2, 200), "general low": (5, 500), "general high": (1, 100)}


def friends(alpha: float = 0.7, clients: int = 20, epochs: int = 2, rounds: int = 50) -> dict[str, Experiment]:
    """Full, Dropout, Stale and friends on clustered Digits, seven in ten absent; in seconds, without downloads."""
    return _methods(DropoutSetting("Digits", clients=clients, epochs=epochs), alpha, rounds)


def mnist_friends(alpha: float = 0.7, clients: int = 20, epochs: int = 2, rounds: int = 100) -> dict[str, Experiment]:
    """The same on clustered MNIST, 200 samples a client, a CNN with dropout (Figure 1)."""
    return _methods(DropoutSetting("MNIST", clients=clients, epochs=epochs), alpha, rounds)


def _methods(setting: DropoutSetting, alpha: float, rounds: int) -> dict[str, Experiment]:
    """One experiment per method, all with the same turnout."""
    made = {
        method: dropout_experiment(setting, 0.0 if method == "Full" else alpha, substitution, rounds)
        for method, substitution in METHODS.items()
    }
    return {name.replace("FDMS", "Friends"): e.but(runtime=InProcess()) for name, e in made.items()}


@dataclass(frozen=True)
class DropoutSetting:
    """A case without its dropout ratio and method.

    split        clustered, or a level of the general setting
    prox         FedProx instead of plain SGD
    independent  clients drop out independently, so friends may be absent too (Appendix B)
    server_rate  1 as in the authors' code; the paper prints 0.1
    samples      "code": a client trains on the first 80 % of its samples, sorted by class; "text": on all of them
    """

    data: str
    split: str = "clustered"
    clients: int = 20
    epochs: int = 2
    prox: bool = False
    independent: bool = False
    server_rate: float = 1.0
    samples: str = "code"

    @property
    def name(self) -> str:
        """The data and the split, and what differs from the usual setting.

        >>> DropoutSetting("MNIST", clients=40).name, DropoutSetting("CIFAR-10", prox=True).name
        ('MNIST clustered K=40', 'CIFAR-10 clustered FedProx')
        """
        words = [self.data, self.split] + [f"K={self.clients}"] * (self.clients != 20)
        words += [f"E={self.epochs}"] * (self.epochs != 2) + ["FedProx"] * self.prox
        words += [f"rate={self.server_rate:g}"] * (self.server_rate != 1) + ["all samples"] * (self.samples == "text")
        return " ".join(words)

    def case(self, alpha: float) -> str:
        return f"{self.name} alpha={alpha}" + (" independent" if self.independent else "")

    @property
    def methods(self) -> dict[str, Substitution]:
        """The methods compared; both readings of Stale where nothing else varies."""
        usual = self == DropoutSetting(self.data)
        return METHODS | ({AUTHORS_STALE: Stale(form="weights")} if usual else {})


def data_of(setting: DropoutSetting) -> tuple[DataSpec, Model, int]:
    """Data, model and batch size."""
    few = setting.data == "Digits"
    partition: Partition = Clustered()
    if setting.split in GENERAL:
        each, partitions = GENERAL[setting.split]
        partition = Shards(each) if few else Shards(each, partitions)
    if few:  # all samples are dealt out: 71 or 72 each among 20, 35 or 36 among 40
        return Digits(clients=setting.clients, partition=partition, test_share=0.0), models.MLP(50), 10
    samples = {"MNIST": 200, "FMNIST": 200, "CIFAR-10": 1000 if setting.split == "clustered" else 500}[setting.data]
    dealt: dict[str, Any] = {"clients": setting.clients, "partition": partition}
    dealt |= {"sizes": Equal(samples * 20 // setting.clients)}
    dealt |= {"test_share": 0.2, "local_test": LOCAL_TEST} if setting.samples == "code" else {"test_share": 0.0}
    if setting.data == "CIFAR-10":
        return CIFAR10(**dealt, mean=(0.5,), std=(0.5,)), models.fdms_cifar_cnn(), 20
    kind = MNIST if setting.data == "MNIST" else FashionMNIST
    return kind(**dealt), models.fdms_mnist_cnn(dropout=0.5), 5


def dropout_experiment(setting: DropoutSetting, alpha: float, substitution: Substitution, rounds: int) -> Experiment:
    """One case with one method: plain SGD, uniform shares."""
    data, model, batch_size = data_of(setting)
    kind = Dropout if setting.independent else Stratified
    participation: Participation = kind(alpha, full_first_round=True) if alpha else Always()
    local = Local(SGD(lr=0.1), epochs=setting.epochs, batch_size=batch_size)
    return Experiment(
        world=World(data, participation),
        model=model,
        algorithm=Algorithm(
            local,
            substitution=substitution,
            weighting=ByShare(),
            server=ServerSGD(setting.server_rate),
            shares=Shares(by="uniform"),
            terms=(Proximal(MU),) if setting.prox else (),
        ),
        rounds=rounds,
        runtime=ONE_CORE if setting.data == "Digits" else InProcess(),
    )
