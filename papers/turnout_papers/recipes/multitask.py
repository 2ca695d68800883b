"""MTFL, multi-task federated learning (Mills, Hu, Min): every client's own BatchNorm layers, and distributed Adam.

The paper's FedAdam is `Adam` on the clients with averaged moments (its authors' code calls it FedAvg-Adam); MT-FedAdam
is the same with BatchNorm at home. Personal layers are uploaded as in the paper, so that there is a central model too.
The batch size is that of the authors' code, as the paper gives none.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

import turnout as to
import turnout.models as models
from turnout import SGD, Adam, Algorithm, Evaluate, Experiment, Local, World
from turnout.data import CIFAR10, MNIST, Digits, Noisy
from turnout.data.partition import IID, Classes, Partition, Shards
from turnout.data.partitioned import Partitioned
from turnout.experiment import DataSpec
from turnout.models import ModelSpec
from turnout.parts.selection import Everyone, Fraction, Selection
from turnout_papers.recipes import on_one_core

BATCH = 20
LOCAL_TEST = "official"  # the test set dealt with each client's own mix of labels, as in the paper


def multitask(
    clients: int = 20, classes: int = 4, noisy: float = 0.2, share: float = 0.5, rounds: int = 100
) -> dict[str, Experiment]:
    """MT-FedAdam, FedAdam and independent clients on the embedded digits, a fifth of them with noisy pictures."""
    data = with_noise(Digits(clients=clients, partition=of_classes(classes), local_test=LOCAL_TEST), noisy)
    return on_one_core(methods(data, models.MLP(32, 32, batch_norm=True), share, rounds))


def cifar_multitask(
    clients: int = 200,
    classes: int = 4,
    noisy: float = 0.2,
    share: float = 0.5,
    rounds: int = 200,
    variant: str = "paper",
) -> dict[str, Experiment]:
    """The same on CIFAR-10 with the paper's CNN (Figures 4 to 6); variant = code: the authors' noise and BatchNorm."""
    model = models.mtfl_cifar_cnn(variant=variant)
    data = CIFAR10(clients=clients, partition=of_classes(classes), local_test=LOCAL_TEST)
    return methods(with_noise(data, noisy, 2.0 if variant == "paper" else 0.2), model, share, rounds)


def mnist_adam(
    clients: int = 200,
    iid: bool = False,
    share: float = 0.5,
    lr: float = 0.3,
    epochs: int = 1,
    rounds: int = 200,
    variant: str = "paper",
) -> dict[str, Experiment]:
    """FedAvg and FedAdam on MNIST with the paper's 2NN (Table 1); `lr` is FedAvg's."""
    data = MNIST(clients=clients, partition=table_1(iid), test_share=0.0)
    model, cohort = models.mtfl_mnist_mlp(variant), asking(share)
    return {
        "FedAvg": Experiment(World(data), model, Algorithm(sgd(lr, epochs), selection=cohort), rounds=rounds),
        "FedAdam": Experiment(World(data), model, Algorithm(adam(epochs), selection=cohort), rounds=rounds),
    }


def methods(data: DataSpec, model: ModelSpec, share: float, rounds: int, epochs: int = 1) -> dict[str, Experiment]:
    """The three methods that Figures 4 to 7 compare, in one world."""
    home = {"MT-FedAdam": to.personal.batch_norm, "FedAdam": None, "Independent": to.personal.everything}
    return {
        name: Experiment(
            world=World(data),
            model=model,
            algorithm=Algorithm(
                local=adam(epochs),
                personal=personal,
                share_personal=name == "MT-FedAdam",
                selection=asking(share),
            ),
            rounds=rounds,
            evaluate=Evaluate(personal=True),
        )
        for name, personal in home.items()
    }


def adam(epochs: int) -> Local:
    """The paper's α = 0.01, β1 = 0.99, β2 = 0.9999; moments are averaged like the parameters they belong to."""
    return Local(Adam(), epochs=epochs, batch_size=BATCH)


def sgd(lr: float, epochs: int) -> Local:
    return Local(SGD(lr=lr), epochs=epochs, batch_size=BATCH)


def asking(share: float) -> Selection:
    """C: the share of the clients that take part in a round."""
    return Everyone() if share == 1 else Fraction(share)


def table_1(iid: bool, split: str = "classes") -> Partition:
    """IID: every client the same share of every class; else two random classes each, as the paper says, or two "shards"
    of the samples sorted by label, as its authors' code has it."""
    return IID(stratified=True) if iid else of_classes(2) if split == "classes" else Shards(2)


def of_classes(classes: int) -> Partition:
    return Classes(per_client=classes, pick="random")


@dataclass(frozen=True)
class FirstWeights:
    """A network whose weights begin elsewhere than torch's own do, and its biases at 0.

    model  the network
    law    "glorot", uniform, as TensorFlow does unless told otherwise; "he": N(0, 2 / inputs) (He et al., 2015)
    """

    model: ModelSpec
    law: str

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        built = self.model.build(input_shape, classes)
        for layer in built.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                if self.law == "he":
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                else:
                    nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        return built


def with_noise(data: Partitioned, noisy: float, std: float = 2.0) -> DataSpec:
    """N(0, 4) on the training pictures of a share of the clients; or as the authors' code has it."""
    return Noisy(data, share=noisy, std=std) if noisy else data
