"""Study `noniid`: paper 001, Figure 1 and §5.2: what the methods lose as clients have fewer classes.

IID and m classes a client, full participation. The accuracy of a run is that of the shared model on the central test
set, mean over the last fifth of the rounds; what a method loses is its accuracy on IID data less that with the fewest
classes. The paper has curves and no numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.experiment import Evaluate, Experiment
from turnout.statistics.paired import difference
from turnout.studies.claims import Claim, better
from turnout.studies.drawing import Chart, over_rounds, picture
from turnout.studies.efl import PAPER, PAPER_NOTES, SMALL, Setting, accuracy, methods, methods_notes
from turnout.studies.study import Curves, Part, Plan, Row, Study, not_run, row
from turnout.world.participation import Always

METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "APFL", "EFL", "EFL ternary")
COMPARED = METHODS[:4]  # with EFL


@dataclass(frozen=True)
class Size:
    """How large the study is at one scale."""

    settings: tuple[Setting, ...]
    between: tuple[int, ...]  # classes a client between IID and the fewest, as multiples of these
    epochs: int
    rounds: int
    seeds: int


SIZES = {
    "smoke": Size((SMALL,), (), 1, 3, seeds=2),
    "small": Size((SMALL,), (2,), 2, 30, seeds=5),
    "paper": Size((PAPER["CIFAR-10"], PAPER["CIFAR-100"]), (2,), 5, 100, seeds=3),
}


def splits(setting: Setting, size: Size) -> list[str]:
    """From IID to the fewest classes.

    >>> splits(SMALL, SIZES["small"])
    ['IID', 'm=4', 'm=2']
    """
    return ["IID", *(f"m={times * setting.classes}" for times in (*size.between, 1))]


def case(setting: Setting, split: str) -> str:
    return f"{setting.data} {split}"


def variant(setting: Setting, split: str, method: str) -> str:
    return f"{case(setting, split)} {method}"


def experiment(setting: Setting, split: str, method: str, size: Size) -> Experiment:
    own = Evaluate(personal=method == "APFL")  # whose clients have models of their own
    made = methods(setting)[method]
    dealt = "IID" if split == "IID" else int(split.removeprefix("m="))
    return setting.experiment(dealt, size.epochs, size.rounds, participation=Always(), evaluate=own, **made)


def plan(scale: str) -> Plan:
    size = SIZES[scale]
    variants = {
        variant(setting, split, method): experiment(setting, split, method, size)
        for setting in size.settings
        for split in splits(setting, size)
        for method in METHODS
    }
    notes = [
        f"E = {size.epochs}, {size.rounds} rounds, {size.seeds} seeds",
        *methods_notes(size.settings),
        "accuracy: the shared model's; APFL's is FedAvg's by construction, its clients' own models are in a column of "
        "their own",
    ]
    if scale == "paper":
        notes += [PAPER_NOTES[0], "CIFAR-10 beside CIFAR-100; no EMNIST with ResNet50"]
    else:
        notes.insert(0, f"shrunk: 8x8 digits, {SMALL.clients} clients, a CNN of 8 and 16 channels")
    return Plan([Part("figure1", variants, size.seeds)], notes)


@dataclass(frozen=True)
class Results:
    """The accuracies of one data set."""

    setting: Setting
    size: Size
    curves: Curves

    @property
    def splits(self) -> list[str]:
        return splits(self.setting, self.size)

    @property
    def names(self) -> list[str]:
        return [variant(self.setting, split, method) for split in self.splits for method in METHODS]

    def of(self, split: str, method: str) -> dict[int, float]:
        return self.curves.each(variant(self.setting, split, method), accuracy)

    def loss(self, method: str) -> dict[int, float]:
        """From IID to the fewest classes."""
        return difference(self.of(self.splits[0], method), self.of(self.splits[-1], method))


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for setting in SIZES[scale].settings:
        results = Results(setting, SIZES[scale], curves)
        for method in METHODS:
            label = f"{setting.data} {method}"
            if not curves.has(*results.names):
                found.append(not_run(label, "lost"))
                continue
            found += [row(label, split, results.of(split, method)) for split in results.splits]
            found.append(row(label, "lost", results.loss(method)))
            if method == "APFL":
                own = curves.of("personal_accuracy")
                found += [
                    row(label, f"{split}, own models", own.each(variant(setting, split, method), accuracy))
                    for split in results.splits
                ]
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for setting in SIZES[scale].settings:
        results = Results(setting, SIZES[scale], curves)
        for method in COMPARED:
            claim = f"{setting.data}: from IID to {results.splits[-1]} EFL loses less accuracy than {method}"
            if curves.has(*results.names):
                found.append(better(claim, results.loss(method), results.loss("EFL"), "points"))
            else:
                found.append(Claim(claim, False, curves.why_missing(*results.names)))
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 1: accuracy over the rounds, IID at the left."""
    charts: list[Chart] = []
    for setting in SIZES[scale].settings:
        for split in splits(setting, SIZES[scale]):
            names = {method: variant(setting, split, method) for method in METHODS if method != "APFL"}
            if curves.has(*names.values()):
                charts.append((f"{case(setting, split)}: accuracy", "round", over_rounds(curves, names)))
    return {"figure1.svg": picture(charts, "percent")} if charts else {}


STUDY = Study(
    name="noniid",
    reproduces="paper 001, Figure 1: what FedAvg, FedProx, SCAFFOLD, APFL and EFL lose on few classes a client",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    more=("personal_accuracy",),
)
