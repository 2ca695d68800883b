"""What the studies of EFL share: its tasks at every scale, EFL, and the methods it is compared with.

The paper gives no λ, q, E, learning rate, batch size, number of rounds, share of the clients asked or m of its tables:
these are ours, the same for all methods. EFL is scheme C with the elastic term; with ternary messages both ways where a
variant says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import turnout as to
import turnout.models as models
from turnout import SGD, Algorithm, Evaluate, Experiment, Local, World
from turnout.data import CIFAR10, EMNIST, MNIST, Characters, Digits, Equal, Pareto, Sentences, Synthetic
from turnout.data.partition import IID, Classes, Dirichlet, Natural, Partition
from turnout.experiment import DataSpec, Model
from turnout.parts.selection import Everyone, Fraction, Selection
from turnout.parts.weighting import ByWork
from turnout.settings import InProcess
from turnout.tasks import Classification, NextCharacter, TaskSpec
from turnout.world.participation import Participation, Traces
from turnout_papers.recipes import ONE_CORE
from turnout_papers.recipes.together import METHODS
from turnout_papers.studies.study import Curve

TRACES = Traces(first=5)  # how much of the work clients finish, unless a study says otherwise
FULL = "as it comes"  # the split of data that comes with one
FAR = "(1,1)"  # the synthetic task's split: optima and inputs far apart


@dataclass(frozen=True)
class EFLSetting:
    """A data set with the model and the local training it has in these studies.

    data, clients, model, lr, batch_size, task
    classes   classes of a client, where the split is by classes
    unit      what E counts: passes over a client's data, or mini-batches ("time steps", as Algorithm 1 has it)
    asked     the share of the clients that take part in a round
    every     rounds from one evaluation to the next: numbers are means or best values of many rounds
    fisher    samples that a client's Fisher information is taken over
    strength  λ where a study does not choose it; set by hand on digits with seeds 100 and 101, which judge nothing
    """

    data: str
    clients: int
    model: Model
    lr: float = 0.1
    batch_size: int = 10
    classes: int = 2
    strength: float = 0.03
    fisher: int = 32
    unit: str = "epochs"
    asked: float = 1.0
    every: int = 1
    task: TaskSpec = field(default_factory=Classification)

    @property
    def name(self) -> str:
        """The data, and the network where it is not the usual one."""
        return f"{self.data} ResNet50" if isinstance(self.model, models.ResNet) else self.data

    def splits(self, between: Sequence[int] = ()) -> list[str]:
        """From IID to the most different clients, `between` as multiples of the fewest classes.

        >>> SMALL.splits((2,)), SYNTHETIC.splits((2,))
        (['IID', 'm=4', 'm=2'], ['IID', '(1,1)'])
        """
        if self.data == "SYNTHETIC":
            return ["IID", FAR]
        return ["IID", *(f"m={times * self.classes}" for times in (*between, 1))]

    def source(self, split: str) -> DataSpec:
        """The data dealt out: "IID", "m=2" (so many classes a client), or `FULL`: as it is (sentiments by Dirichlet).

        Pictures have an official test set, of which every client has a part with its own mix of labels.
        """
        if self.data == "SYNTHETIC":
            return Synthetic(1.0, 1.0, self.clients, iid=split == "IID", sizes=Pareto(cap=300))
        if self.data in _TEXTS:
            own: Partition = Natural() if self.data == "Shakespeare" else Dirichlet(0.3)
            return _TEXTS[self.data](clients=self.clients, partition=IID() if split == "IID" else own)
        classes = str(self.classes) if split == FULL else split.removeprefix("m=")
        partition: Partition = IID() if split == "IID" else Classes(int(classes))
        return _PICTURES[self.data](clients=self.clients, partition=partition, local_test="official")

    def experiment(
        self,
        split: str,
        work: int,
        rounds: int,
        participation: Participation = TRACES,
        personal: bool | None = None,
        **algorithm: Any,
    ) -> Experiment:
        """One run; a client whose update is not finite counts as absent, so that a diverging method can be compared."""
        selection: Selection = Everyone() if self.asked == 1 else Fraction(self.asked)
        local = Local(SGD(lr=self.lr), batch_size=self.batch_size, **{self.unit: work})  # type: ignore[arg-type]
        return Experiment(
            world=World(self.source(split), participation),
            model=self.model,
            task=self.task,
            algorithm=Algorithm(local=local, nonfinite="absent", selection=selection, **algorithm),
            rounds=rounds,
            evaluate=Evaluate(every=self.every, personal=personal),
            runtime=ONE_CORE if self.data in ("digits", "SYNTHETIC") else InProcess(precision="tf32"),
        )


_PICTURES: Mapping[str, Any] = {"digits": Digits, "MNIST": MNIST, "EMNIST": EMNIST, "CIFAR-10": CIFAR10}
_TEXTS: Mapping[str, Any] = {
    "Shakespeare": partial(  # speakers with 2,000 characters or more
        Characters, "shakespeare/by_role.csv", owner_column=("play", "speaker"), length=80, min_characters=2000
    ),
    "Sentiment140": partial(  # equally many tweets each: sizes drawn from the Dirichlet leave some with hardly any
        Sentences, "sentiment140/tweets.csv", length=25, vocabulary=10_000, sizes=Equal(500)
    ),
}

SMALL = EFLSetting("digits", 20, models.CNN(channels=(8, 16), kernel=3, padding=1))
SYNTHETIC = EFLSetting("SYNTHETIC", 50, models.Logistic(), batch_size=20, strength=0.01)
_OURS: dict[str, Any] = {"strength": 0.01, "unit": "steps", "asked": 0.2, "every": 4}
PAPER = {
    setting.data: setting
    for setting in (
        EFLSetting("MNIST", 100, models.mcmahan_cnn(), batch_size=20, **_OURS),
        EFLSetting("CIFAR-10", 100, models.vgg11(), batch_size=20, classes=4, **_OURS),
        EFLSetting("Shakespeare", 100, models.CharacterLSTM(), 1.0, 10, fisher=8, **_OURS, task=NextCharacter()),
        EFLSetting("Sentiment140", 100, models.SentenceLSTM(), 0.3, 20, fisher=8, **_OURS),
    )
}
RESNET = tuple(  # ten clients a round, as it is some fifty times the work of the other networks
    replace(PAPER["MNIST"], data=data, model=models.resnet50("large"), lr=0.05, classes=classes, fisher=8, asked=0.1)
    for data, classes in (("MNIST", 2), ("EMNIST", 6))
)
PAPER_NOTES = (
    "networks: McMahan's CNN for MNIST (paper: ResNet50), the simplified VGG11 on CIFAR-10 (paper: CIFAR-100, whose "
    "files we do not have), LSTMs of two layers of 256",
    "ours, as the paper says nothing of it: E in mini-batches, 20 of the 100 clients asked a round, rounds, rates, "
    "batches, Fisher information of 32 samples (LSTMs and ResNet50: 8); products rounded to TF32",
    "Sentiment140 comes without authors: its tweets are dealt by Dirichlet(0.3) over the two sentiments",
)

SHRUNK = f"8x8 digits, {SMALL.clients} clients, a CNN of 8 and 16 channels"


@dataclass(frozen=True)
class EFLSize:
    """How large a study of EFL is at one scale.

    settings   the data sets
    epochs     the values of E, in mini-batches at paper scale
    rounds     of a run
    seeds      that are judged
    shares     of the clients that are asked, most first
    strengths  the values of λ to choose from
    tuning     seeds that λ is chosen on
    """

    settings: tuple[EFLSetting, ...]
    epochs: tuple[int, ...]
    rounds: int
    seeds: int
    shares: tuple[float, ...] = ()
    strengths: tuple[float, ...] = ()
    tuning: int = 0

    def cases(self) -> list[tuple[EFLSetting, int]]:
        return [(setting, epochs) for setting in self.settings for epochs in self.epochs]


def efl(setting: EFLSetting, strength: float | None = None) -> dict[str, Any]:
    """The two halves of EFL: scheme C and the elastic term, with the setting's λ or another."""
    term = to.terms.Elastic(setting.strength if strength is None else strength, samples=setting.fisher)
    return {"weighting": ByWork(), "terms": (term,)}


def methods(setting: EFLSetting) -> dict[str, dict[str, Any]]:
    """The algorithms that are compared: what each has beside the local training that all share."""
    keep = 0.1 if setting.data == "digits" else 0.01
    ours = efl(setting)
    return METHODS | {"EFL": ours, "EFL ternary": ours | {"compression": to.compression.SparseTernary(keep)}}


def methods_notes(settings: Sequence[EFLSetting]) -> list[str]:
    return [
        f"EFL: scheme C and the elastic term with λ = {', '.join(f'{s.strength:g} ({s.data})' for s in settings)} (not "
        "chosen on these seeds); EFL ternary: with SparseTernary both ways, 1 % of the entries (digits: 10 %)",
        "the other methods as in recipe `baselines`; everything else is the same for all; everybody does all the work",
    ]


def spread(curve: Curve) -> float:
    """Points: the standard deviation over the last fifth of the rounds."""
    value_T = curve.end(5).value_T
    return 100 * float(value_T.std(ddof=1)) if len(value_T) > 1 else math.nan


def best(curve: Curve) -> float:
    """Percent, the best of all rounds."""
    return 100 * float(curve.value_T[curve.round_T >= 0].max())
