"""The cases of the figures of FDMS: data, network and dropout, with each method; what its three studies share.

Clustered (five clusters of clients, each with two classes of its own) and general settings, three dropout ratios, other
E and K, other levels of non-IID-ness, FedProx. At smaller scales Digits stands for all data sets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import turnout.models as models
from turnout.data import CIFAR10, MNIST, Digits, Equal, FashionMNIST
from turnout.data.partition import Clustered, Partition, Shards
from turnout.experiment import DataSpec, Experiment, Model, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.substitution.base import NoSubstitution, Spread, Substitution
from turnout.parts.substitution.friends import Friends
from turnout.parts.substitution.stale import Stale
from turnout.parts.terms.proximal import Proximal
from turnout.settings import InProcess
from turnout.world.participation import Always, Dropout, Participation, Stratified
from turnout_papers.recipes import ONE_CORE
from turnout_papers.recipes.friends import LOCAL_TEST, algorithm

METHODS: dict[str, Substitution] = {"Full": NoSubstitution(), "Dropout": Spread(), "Stale": Stale(), "FDMS": Friends()}
AUTHORS_STALE = "Stale weights"  # what the authors' code calls Stale: the last weights, not the last update
ALPHAS = (0.3, 0.5, 0.7)
MU = 0.2  # of FedProx
# partition of the general setting, and of its other levels: (partitions a client picks, partitions of CIFAR-10)
GENERAL = {"general": (2, 200), "general low": (5, 500), "general high": (1, 100)}


@dataclass(frozen=True)
class DropoutSetting:
    """A case without its dropout ratio and method.

    split        clustered, or a level of the general setting
    prox         FedProx instead of plain SGD
    independent  clients drop out independently, so friends may be absent too (Appendix B)
    """

    data: str
    split: str = "clustered"
    clients: int = 20
    epochs: int = 2
    prox: bool = False
    independent: bool = False

    @property
    def name(self) -> str:
        """The data and the split, and what differs from the usual setting.

        >>> DropoutSetting("MNIST", clients=40).name, DropoutSetting("CIFAR-10", prox=True).name
        ('MNIST clustered K=40', 'CIFAR-10 clustered FedProx')
        """
        words = [self.data, self.split] + [f"K={self.clients}"] * (self.clients != 20)
        words += [f"E={self.epochs}"] * (self.epochs != 2) + ["FedProx"] * self.prox
        return " ".join(words)

    def case(self, alpha: float) -> str:
        return f"{self.name} alpha={alpha}" + (" independent" if self.independent else "")

    @property
    def methods(self) -> dict[str, Substitution]:
        """The methods compared; both readings of Stale where nothing else varies."""
        usual = self == DropoutSetting(self.data)
        return METHODS | ({AUTHORS_STALE: Stale(form="weights")} if usual else {})


@dataclass(frozen=True)
class FriendsSize:
    """How large the study is at one scale; `rounds` by data set."""

    rounds: dict[str, int]
    seeds: int


SIZES = {
    "smoke": FriendsSize({"Digits": 3}, seeds=2),
    "small": FriendsSize({"Digits": 50}, seeds=5),
    "paper": FriendsSize({"MNIST": 100, "CIFAR-10": 500, "FMNIST": 300}, seeds=10),
}


def cases(scale: str) -> list[tuple[DropoutSetting, float]]:
    """The cases of the paper's figures; at smaller scales Digits stands for all data sets."""
    if scale == "paper":
        mnist, cifar = DropoutSetting("MNIST"), DropoutSetting("CIFAR-10")
        clustered, general = [mnist, cifar, DropoutSetting("FMNIST")], replace(cifar, split="general")
        varied = [mnist, cifar]
    else:
        mnist = cifar = DropoutSetting("Digits")
        clustered, general, varied = [mnist], replace(mnist, split="general"), [mnist]
    if scale == "smoke":
        some = [(mnist, alpha) for alpha in ALPHAS]
        return [*some, (replace(mnist, clients=40), 0.5), (general, 0.5)]
    found = [(s, alpha) for s in [*clustered, general] for alpha in ALPHAS]
    for s in varied:
        found += [(replace(s, epochs=epochs), 0.5) for epochs in (1, 5)]
        found += [(replace(s, clients=40), 0.5), (replace(s, independent=True), 0.5)]
    found += [(replace(cifar, prox=True), 0.5)]
    return found + [(replace(general, split=split), 0.5) for split in ("general low", "general high")]


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
    dealt: dict[str, Any] = {"clients": setting.clients, "partition": partition, "test_share": 0.2}
    dealt |= {"sizes": Equal(samples * 20 // setting.clients), "local_test": LOCAL_TEST}
    if setting.data == "CIFAR-10":
        return CIFAR10(**dealt, mean=(0.5,), std=(0.5,)), models.fdms_cifar_cnn(), 20
    kind = MNIST if setting.data == "MNIST" else FashionMNIST
    return kind(**dealt), models.fdms_mnist_cnn(dropout=0.5), 5


def experiment(setting: DropoutSetting, alpha: float, substitution: Substitution, rounds: int) -> Experiment:
    """One case with one method: plain SGD, uniform shares, server learning rate 1 (the authors' code)."""
    data, model, batch_size = data_of(setting)
    kind = Dropout if setting.independent else Stratified
    participation: Participation = kind(alpha, full_first_round=True) if alpha else Always()
    chosen = algorithm(Local(SGD(lr=0.1), epochs=setting.epochs, batch_size=batch_size), substitution)
    return Experiment(
        world=World(data, participation),
        model=model,
        algorithm=replace(chosen, terms=(Proximal(MU),) if setting.prox else ()),
        rounds=rounds,
        runtime=ONE_CORE if setting.data == "Digits" else InProcess(),
    )
