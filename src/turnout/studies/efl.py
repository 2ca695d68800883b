"""What the studies of paper 001 share: its tasks at every scale, EFL, and the methods it is compared with.

The paper gives no λ, q, E, learning rate, batch size, number of rounds or m of its tables: these are ours, the same for
all methods. EFL is scheme C with the elastic term; with ternary messages both ways where a variant says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import turnout.models as models
from turnout.data import CIFAR10, CIFAR100, MNIST, Characters, Digits, Equal, Sentences
from turnout.data.partition import IID, Classes, Dirichlet, Natural, Partition
from turnout.experiment import Algorithm, DataSpec, Evaluate, Experiment, Model, World
from turnout.parts.compression.ternary import SparseTernary
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.terms.elastic import Elastic
from turnout.parts.weighting import ByWork
from turnout.recipes.baselines import METHODS
from turnout.runtimes.settings import InProcess
from turnout.studies.study import Curve
from turnout.task import Classification, NextCharacter, TaskSpec
from turnout.world.participation import Participation, Traces

TRACES = Traces(first=5)  # how much of the work clients finish, unless a study says otherwise
FULL = "as it comes"  # the split of data that comes with one


@dataclass(frozen=True)
class Setting:
    """A data set with the model and the local training it has in these studies.

    strength: λ where a study does not choose it; set by hand on digits with seeds 100 and 101, which judge nothing
    """

    data: str
    clients: int
    model: Model
    lr: float = 0.1
    batch_size: int = 10
    classes: int = 2  # a client, where the split is by classes
    strength: float = 0.03
    task: TaskSpec = field(default_factory=Classification)

    def source(self, split: str | int) -> DataSpec:
        """The data dealt out: "IID", so many classes a client, or `FULL`: as it is (speakers; sentiments by Dirichlet).

        Pictures have an official test set, of which every client has a part with its own mix of labels.
        """
        if self.data in _TEXTS:
            return self._text(split)
        partition: Partition = IID() if split == "IID" else Classes(self.classes if split == FULL else int(split))
        return _PICTURES[self.data](clients=self.clients, partition=partition, local_test="official")

    def _text(self, split: str | int) -> DataSpec:
        own: Partition = Natural() if self.data == "Shakespeare" else Dirichlet(0.3)
        return _TEXTS[self.data](clients=self.clients, partition=IID() if split == "IID" else own)

    def local(self, epochs: int) -> Local:
        return Local(SGD(lr=self.lr), epochs=epochs, batch_size=self.batch_size)

    def experiment(
        self,
        split: str | int,
        epochs: int,
        rounds: int,
        participation: Participation = TRACES,
        evaluate: Evaluate = Evaluate(),  # noqa: B008 (frozen)
        **algorithm: Any,
    ) -> Experiment:
        """One run; a client whose update is not finite counts as absent, so that a diverging method can be compared."""
        return Experiment(
            world=World(self.source(split), participation),
            model=self.model,
            task=self.task,
            algorithm=Algorithm(local=self.local(epochs), nonfinite="absent", **algorithm),
            rounds=rounds,
            evaluate=evaluate,
            runtime=InProcess(device="cpu", threads=1) if self.data == "digits" else InProcess(),
        )


def _shakespeare(**dealt: Any) -> Characters:
    """Speakers with 2,000 characters or more."""
    owner = ("play", "speaker")
    return Characters("shakespeare/by_role.csv", owner_column=owner, length=80, min_characters=2000, **dealt)


def _sentiment(**dealt: Any) -> Sentences:
    """The same number of tweets for every client; sizes drawn from the Dirichlet leave some with hardly any."""
    return Sentences("sentiment140/tweets.csv", length=25, vocabulary=10_000, sizes=Equal(500), **dealt)


_PICTURES: Mapping[str, Any] = {"digits": Digits, "MNIST": MNIST, "CIFAR-10": CIFAR10, "CIFAR-100": CIFAR100}
_TEXTS: Mapping[str, Any] = {"Shakespeare": _shakespeare, "Sentiment140": _sentiment}

SMALL = Setting("digits", 20, models.CNN(channels=(8, 16), kernel=3, padding=1))
PAPER = {
    setting.data: setting
    for setting in (
        Setting("MNIST", 100, models.mcmahan_cnn(), batch_size=20, strength=0.01),
        Setting("CIFAR-10", 100, models.vgg11(), lr=0.05, batch_size=20, strength=0.01),
        Setting("CIFAR-100", 100, models.vgg11(), lr=0.05, batch_size=20, classes=10, strength=0.01),
        Setting("Shakespeare", 100, models.CharacterLSTM(), lr=1.0, batch_size=10, strength=0.01, task=NextCharacter()),
        Setting("Sentiment140", 100, models.SentenceLSTM(), lr=0.3, batch_size=20, strength=0.01),
    )
}
PAPER_NOTES = (
    "networks: McMahan's CNN for MNIST (paper: ResNet50), the simplified VGG11, LSTMs of two layers of 256",
    "Sentiment140 comes without authors: its tweets are dealt by Dirichlet(0.3) over the two sentiments",
)


def efl(strength: float) -> dict[str, Any]:
    """The two halves of EFL: scheme C and the elastic term."""
    return {"weighting": ByWork(), "terms": (Elastic(strength),)}


def methods(setting: Setting) -> dict[str, dict[str, Any]]:
    """The algorithms that are compared: what each has beside the local training that all share."""
    keep = 0.1 if setting.data == "digits" else 0.01
    ours = efl(setting.strength)
    return METHODS | {"EFL": ours, "EFL ternary": ours | {"compression": SparseTernary(keep)}}


def methods_notes(settings: Sequence[Setting]) -> list[str]:
    return [
        f"EFL: scheme C and the elastic term with λ = {', '.join(f'{s.strength:g} ({s.data})' for s in settings)} (not "
        "chosen on these seeds); EFL ternary: with SparseTernary both ways, 1 % of the entries (digits: 10 %)",
        "the other methods as in recipe `baselines`; everything else is the same for all; everybody does all the work",
    ]


def accuracy(curve: Curve) -> float:
    """Percent, mean over the last fifth of the rounds."""
    return 100 * curve.end(5).mean()


def spread(curve: Curve) -> float:
    """Points: the standard deviation over the last fifth of the rounds."""
    value_T = curve.end(5).value_T
    return 100 * float(value_T.std(ddof=1)) if len(value_T) > 1 else math.nan


def best(curve: Curve) -> float:
    """Percent, the best of all rounds."""
    return 100 * float(curve.value_T[curve.round_T >= 0].max())
