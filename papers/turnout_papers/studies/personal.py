"""Study `personal`: paper 004, Figures 4 to 6 (and §3.3's advice on where BatchNorm goes).

MT-FedAdam, FedAdam and independent clients on 4 classes a client, on 4 with a fifth of the clients noisy, and on 2 with
noise: the mean accuracy of clients' own models on their own test data (after download, before training), and the
central model's beside it. The accuracy of a run is its mean over the last tenth of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import turnout.models as models
from turnout.data import CIFAR10, Digits
from turnout.experiment import Experiment
from turnout.statistics import BySeed, difference
from turnout_papers.recipes.multitask import LOCAL_TEST, methods, of_classes, on_cpu, small_network, with_noise
from turnout_papers.studies.claims import Claim, above, better, no_worse
from turnout_papers.studies.drawing import over_rounds, picture
from turnout_papers.studies.published import FIGURES_4_TO_6
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, in_tf32, not_run, row

METHODS = ("MT-FedAdam", "FedAdam", "Independent")
CASES = ((4, False), (4, True), (2, True))  # classes a client, noise
OVER_INDEPENDENT = {(4, False): 18, (4, True): 16, (2, True): 9}  # percentage points, from the paper's text


@dataclass(frozen=True)
class Size:
    data: str
    clients: int
    rounds: int
    seeds: int


SIZES = {
    "smoke": Size("digits", 20, 4, 2),
    "small": Size("digits", 20, 100, 5),
    "paper": Size("CIFAR", 200, 200, 5),
}


def experiments(size: Size, classes: int, noisy: bool, places: models.layers.Places = "all") -> dict[str, Experiment]:
    """The three methods in one world, with BatchNorm after some of the layers."""
    kind = Digits if size.data == "digits" else CIFAR10
    data = kind(clients=size.clients, partition=of_classes(classes), local_test=LOCAL_TEST)
    model = models.MLP(32, 32, batch_norm=places) if size.data == "digits" else models.mtfl_cifar_cnn(places)
    made = methods(with_noise(data, 0.2 if noisy else 0.0), model, share=0.5, rounds=size.rounds)
    return on_cpu(made) if size.data == "digits" else in_tf32(made)


def places(size: Size) -> dict[str, tuple[int, ...]]:
    """Fewer places for BatchNorm than after every hidden layer."""
    return {"first layer": (1,), "last layer": (len(small_network().hidden) if size.data == "digits" else 3,)}


def case(classes: int, noisy: bool) -> str:
    return f"{classes} classes{', noise' if noisy else ''}"


def variant(classes: int, noisy: bool, method: str, where: str = "") -> str:
    return f"{case(classes, noisy)} {method}" + (f" BatchNorm {where} only" if where else "")


def plan(scale: str) -> Plan:
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
    if scale == "paper":
        notes.append("products rounded to TF32, where a GPU does that")
    else:
        notes.insert(0, "shrunk: 8x8 digits and two hidden layers of 32 for CIFAR-10 and its CNN")
    return Plan([Part("figures", variants, size.seeds)], notes)


def accuracy(curve: Curve) -> float:
    """In points: the mean over the last tenth of the rounds."""
    return 100 * curve.end(10).mean()


def quarter(which: int) -> Callable[[Curve], float]:
    """The mean over a quarter of the rounds, in points: the first is 0."""

    def mean(curve: Curve) -> float:
        rounds = int(curve.round_T[-1]) + 1
        return 100 * curve.mean(after=which * rounds / 4 - 1, upto=(which + 1) * rounds / 4 - 1)

    return mean


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for classes, noisy in CASES:
        names = {method: variant(classes, noisy, method) for method in METHODS}
        label, published = case(classes, noisy), FIGURES_4_TO_6[classes, noisy]
        if not curves.has(*names.values()):
            found += [not_run(label, f"personal {method}", published.get(method)) for method in METHODS]
            continue
        own = {method: curves.each(name, accuracy) for method, name in names.items()}
        found += [row(label, f"personal {method}", own[method], published.get(method)) for method in METHODS]
        gain, outbox = difference(own["MT-FedAdam"], own["Independent"]), OVER_INDEPENDENT[classes, noisy]
        found.append(row(label, "MT over independent", gain, outbox))
        for method in METHODS[:2]:
            central = 63 if (classes, noisy, method) == (4, False, "MT-FedAdam") else None
            found.append(
                row(label, f"central {method}", curves.of("global_accuracy").each(names[method], accuracy), central)
            )
    return found + _place_rows(scale, curves)


def _place_rows(scale: str, curves: Curves) -> list[Row]:
    """§3.3: "BN-patches after every intermediate layer increased UA the most"."""
    found = []
    for where in places(SIZES[scale]):
        name, label = variant(*CASES[1], "MT-FedAdam", where), f"{case(*CASES[1])}, BatchNorm {where} only"
        if curves.has(name):
            found.append(row(label, "personal MT-FedAdam", curves.each(name, accuracy)))
        else:
            found.append(not_run(label, "personal MT-FedAdam"))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for classes, noisy in CASES:
        names = [variant(classes, noisy, method) for method in METHODS]
        label = case(classes, noisy)
        if not curves.has(*names):
            found.append(Claim(f"{label}: the claims of Figures 4 to 6", False, curves.why_missing(*names)))
            continue
        found += _claims(label, names, curves)
    return found


def _claims(label: str, names: list[str], curves: Curves) -> list[Claim]:
    mt, fed, alone = (curves.each(name, accuracy) for name in names)
    gain = [_gain(curves, names, quarter(which)) for which in (0, 3)]
    central, other = (curves.of("global_accuracy").each(name, accuracy) for name in names[:2])
    return [
        better(f"{label}: MT-FedAdam's mean personal accuracy is above FedAdam's", mt, fed, "points"),
        better(f"{label}: MT-FedAdam's mean personal accuracy is above independent training's", mt, alone, "points"),
        above(f"{label}: its advantage over FedAdam grows from the first to the last quarter of the rounds",
              difference(gain[1], gain[0]), unit="points"),
        no_worse(f"{label}: its central accuracy is no worse than FedAdam's by more than 5 points", central, other, 5.0,
                 "points"),
    ]  # fmt: skip


def _gain(curves: Curves, names: list[str], number: Callable[[Curve], float]) -> BySeed:
    return difference(*(curves.each(name, number) for name in names[:2]))


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figures 4 to 6: personal and central accuracy over rounds."""
    personal, central = [], []
    for classes, noisy in CASES:
        names = {method: variant(classes, noisy, method) for method in METHODS}
        if not curves.has(*names.values()):
            continue
        both = {method: name for method, name in names.items() if method != "Independent"}
        personal.append((f"{case(classes, noisy)}: personal accuracy", "round", over_rounds(curves, names)))
        lines = over_rounds(curves.of("global_accuracy"), both)
        central.append((f"{case(classes, noisy)}: central accuracy", "round", lines))
    return {"figures4-6.svg": picture([*personal, *central], "percent")} if personal else {}


STUDY = Study(
    name="personal",
    reproduces="paper 004, Figures 4 to 6: clients' own BatchNorm layers, with and without noisy clients",
    metric="personal_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    more=("global_accuracy",),
)
