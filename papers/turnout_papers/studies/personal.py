"""MTFL, Figures 4 to 6: clients' own BatchNorm layers, with and without noisy clients.

MT-FedAdam, FedAdam and independent clients (and §3.3's advice on where BatchNorm goes) on 4 classes a client, on 4 with
a fifth of the clients noisy, and on 2 with noise: the mean accuracy of clients' own models on their own test data
(after download, before training), and the central model's beside it. The accuracy of a run is its mean over the last
tenth of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import turnout.models as models
from turnout.data import CIFAR10, Digits
from turnout.experiment import Experiment
from turnout_papers.recipes import on_one_core
from turnout_papers.recipes.multitask import LOCAL_TEST, methods, of_classes, with_noise
from turnout_papers.studies.claims import Claim, better
from turnout_papers.studies.published import FIGURES_4_TO_6
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan, in_tf32, last_tenth

METHODS = ("MT-FedAdam", "FedAdam", "Independent")
CENTRAL = "global_accuracy"
CASES = ((4, False), (4, True), (2, True))  # classes a client, noise
OVER_INDEPENDENT = {(4, False): 18, (4, True): 16, (2, True): 9}  # percentage points, from the paper's text

SHRUNK = "8x8 digits and two hidden layers of 32 for CIFAR-10 and its CNN"


@dataclass(frozen=True)
class PersonalSize:
    """How large the studies of MTFL are at one scale."""

    data: str
    clients: int
    rounds: int
    seeds: int


SIZES = {
    "smoke": PersonalSize("digits", 20, 4, 2),
    "small": PersonalSize("digits", 20, 100, 5),
    "paper": PersonalSize("CIFAR", 200, 200, 5),
}


def experiments(
    size: PersonalSize, classes: int, noisy: bool, places: models.layers.Places = "all"
) -> dict[str, Experiment]:
    """The three methods in one world, with BatchNorm after some of the layers."""
    kind = Digits if size.data == "digits" else CIFAR10
    data = kind(clients=size.clients, partition=of_classes(classes), local_test=LOCAL_TEST)
    model = models.MLP(32, 32, batch_norm=places) if size.data == "digits" else models.mtfl_cifar_cnn(places)
    made = methods(with_noise(data, 0.2 if noisy else 0.0), model, share=0.5, rounds=size.rounds)
    return on_one_core(made) if size.data == "digits" else in_tf32(made)


def places(size: PersonalSize) -> dict[str, tuple[int, ...]]:
    """Fewer places for BatchNorm than after every hidden layer."""
    return {"first layer": (1,), "last layer": (2 if size.data == "digits" else 3,)}


def case(classes: int, noisy: bool) -> str:
    return f"{classes} classes{', noise' if noisy else ''}"


def variant(classes: int, noisy: bool, method: str, where: str = "") -> str:
    return f"{case(classes, noisy)} {method}" + (f" BatchNorm {where} only" if where else "")


def plan(scale: str) -> StudyPlan:
    size, variants = SIZES[scale], {}
    for classes, noisy in CASES:
        for method, experiment in experiments(size, classes, noisy).items():
            variants[variant(classes, noisy, method)] = experiment
    for where, numbers in places(size).items():
        fewer = experiments(size, *CASES[1], places=numbers)
        variants[variant(*CASES[1], "MT-FedAdam", where)] = fewer["MT-FedAdam"]
    notes = [
        f"{size.data}, {size.clients} clients, half of them a round, E = 1, {size.rounds} rounds",
        "FedAdam is the paper's name for distributed Adam; its authors' later code calls it FedAvg-Adam",
        "everybody's own model is measured, noisy clients included (the authors' code leaves those out); the worst "
        "tenth and the split by noise are in the runs' records",
        "MT-FedAdam's personal layers are uploaded and averaged for the central model; independent clients have none",
    ]
    tf32 = "products rounded to TF32, where a GPU does that"
    return StudyPlan.at(scale, [Part("figures", variants, size.seeds)], notes, SHRUNK, [tf32])


def quarter(which: int) -> Callable[[Curve], float]:
    """The mean over a quarter of the rounds, in points: the first is 0."""
    return lambda curve: 100 * curve.mean(after=which * curve.rounds / 4 - 1, upto=(which + 1) * curve.rounds / 4 - 1)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for classes, noisy in CASES:
        names = {method: variant(classes, noisy, method) for method in METHODS}
        label, published = case(classes, noisy), FIGURES_4_TO_6[classes, noisy]
        for method, name in names.items():
            yield curves.row(label, f"personal {method}", name, last_tenth, published.get(method))
        gain, gained = (names["MT-FedAdam"], names["Independent"]), OVER_INDEPENDENT[classes, noisy]
        yield curves.row(label, "MT over independent", gain, last_tenth, gained)
        for method in METHODS[:2]:
            central = 63 if (classes, noisy, method) == (4, False, "MT-FedAdam") else None
            yield curves.of(CENTRAL).row(label, f"central {method}", names[method], last_tenth, central)
    for where in places(SIZES[scale]):  # §3.3: "BN-patches after every intermediate layer increased UA the most"
        name, label = variant(*CASES[1], "MT-FedAdam", where), f"{case(*CASES[1])}, BatchNorm {where} only"
        yield curves.row(label, "personal MT-FedAdam", name, last_tenth)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for classes, noisy in CASES:
        label, (mt, fed, alone) = case(classes, noisy), [variant(classes, noisy, method) for method in METHODS]
        ours = f"{label}: MT-FedAdam's mean personal accuracy is above"
        yield curves.better(f"{ours} FedAdam's", mt, fed, last_tenth)
        yield curves.better(f"{ours} independent training's", mt, alone, last_tenth)
        grows = f"{label}: its advantage over FedAdam grows from the first to the last quarter of the rounds"
        yield better(grows, curves.each((mt, fed), quarter(3)), curves.each((mt, fed), quarter(0)), "points")
        central = f"{label}: its central accuracy is no worse than FedAdam's by more than 5 points"
        yield curves.of(CENTRAL).better(central, mt, fed, last_tenth, margin=5.0)


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figures 4 to 6: personal and central accuracy over rounds."""
    lines = {case(*one): {method: variant(*one, method) for method in METHODS} for one in CASES}
    charts = [Chart(f"{label}: personal accuracy", own) for label, own in lines.items()]
    return {
        "figures4-6.svg": charts + [Chart(f"{label}: central accuracy", own, CENTRAL) for label, own in lines.items()]
    }


STUDY = Study("personal", __doc__, "personal_accuracy", plan, rows, claims, figures, (CENTRAL,))
