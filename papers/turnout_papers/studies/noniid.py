"""Study `noniid`: paper 001, Figure 1 and §5.2: what the methods lose as clients have fewer classes.

IID and m classes a client; everybody who is asked does all the work. The accuracy of a run is that of the shared model
on the central test set, mean over the last fifth of the rounds; what a method loses is its accuracy on IID data less
that with the fewest classes. The paper has curves and no numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.experiment import Experiment
from turnout.statistics import difference
from turnout.world.participation import Always
from turnout_papers.studies.claims import Claim, better
from turnout_papers.studies.drawing import Chart, over_rounds, picture
from turnout_papers.studies.efl import (
    PAPER,
    PAPER_NOTES,
    RESNET,
    SMALL,
    SYNTHETIC,
    Setting,
    accuracy,
    methods,
    methods_notes,
)
from turnout_papers.studies.study import Curves, Part, Plan, Row, Study, not_run, row

METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "APFL", "EFL", "EFL ternary")
COMPARED = METHODS[:4]  # with EFL
STATELESS = ("FedAvg", "FedProx", "EFL")  # the others keep a model a client: 9 GB of ResNet50


@dataclass(frozen=True)
class Size:
    """How large the study is on one data set."""

    setting: Setting
    work: int  # E
    rounds: int
    seeds: int
    between: tuple[int, ...] = ()  # classes a client between IID and the fewest, as multiples of these
    methods: tuple[str, ...] = METHODS

    @property
    def splits(self) -> list[str]:
        """From IID to the fewest classes."""
        return self.setting.splits(self.between)

    @property
    def name(self) -> str:
        return self.setting.name

    def variant(self, split: str, method: str) -> str:
        """What a run is called.

        >>> SIZES["small"][0].variant("m=4", "EFL")
        'digits m=4 EFL'
        """
        return f"{self.name} {split} {method}"

    def experiment(self, split: str, method: str) -> Experiment:
        own = method == "APFL"  # whose clients have models of their own
        made = methods(self.setting)[method]
        return self.setting.experiment(split, self.work, self.rounds, participation=Always(), personal=own, **made)


SIZES = {
    "smoke": (Size(SMALL, 1, 3, seeds=2),),
    "small": (Size(SMALL, 2, 30, seeds=5, between=(2,)),),
    "paper": (
        Size(PAPER["CIFAR-10"], 20, 80, seeds=3),
        Size(SYNTHETIC, 5, 100, seeds=10),
        *(Size(setting, 10, 30, seeds=3, methods=STATELESS) for setting in RESNET),
    ),
}


def plan(scale: str) -> Plan:
    parts = []
    for size in SIZES[scale]:
        made = {size.variant(s, m): size.experiment(s, m) for s in size.splits for m in size.methods}
        parts.append(Part("figure1" if scale != "paper" else size.name, made, size.seeds))
    return Plan(parts, notes(scale))


def notes(scale: str) -> list[str]:
    sizes = SIZES[scale]
    found = [
        *(f"{size.name}: E = {size.work}, {size.rounds} rounds" for size in sizes),
        *methods_notes([size.setting for size in sizes]),
        "accuracy: the shared model's; APFL's is FedAvg's by construction, its clients' own models are in a column of "
        "their own",
    ]
    if scale != "paper":
        found[0] = found[0].removeprefix("digits: ")
        return [f"shrunk: 8x8 digits, {SMALL.clients} clients, a CNN of 8 and 16 channels", *found]
    resnet = (
        "ResNet50 with its own stem (7x7, stride 2) on 28x28 pictures: 10 clients a round, without methods that "
        "keep a model a client (9 GB); EMNIST by class, six classes a client"
    )
    synthetic = "SYNTHETIC: 50 clients, one W for all against SYNTHETIC(1,1), everybody every round, E in epochs"
    return [*found, *PAPER_NOTES[:2], resnet, synthetic]


@dataclass(frozen=True)
class Results:
    """The accuracies of one data set."""

    size: Size
    curves: Curves

    def names(self, *methods: str) -> list[str]:
        """The runs that a loss of accuracy needs."""
        ends = self.size.splits[0], self.size.splits[-1]
        return [self.size.variant(split, method) for method in methods for split in ends]

    def has(self, *methods: str) -> bool:
        return self.curves.has(*self.names(*methods))

    def there(self, method: str) -> list[str]:
        """The splits it was run on."""
        return [split for split in self.size.splits if self.curves.has(self.size.variant(split, method))]

    def of(self, split: str, method: str, metric: str | None = None) -> dict[int, float]:
        found = self.curves if metric is None else self.curves.of(metric)
        return found.each(self.size.variant(split, method), accuracy)

    def loss(self, method: str) -> dict[int, float]:
        """From IID to the fewest classes."""
        return difference(*(self.of(split, method) for split in (self.size.splits[0], self.size.splits[-1])))


def rows(scale: str, curves: Curves) -> list[Row]:
    return [row for size in SIZES[scale] for method in size.methods for row in _rows(Results(size, curves), method)]


def _rows(results: Results, method: str) -> list[Row]:
    label, there = f"{results.size.name} {method}", results.there(method)
    found = [row(label, split, results.of(split, method)) for split in there]
    if results.has(method):
        found.append(row(label, "lost", results.loss(method)))
    if method == "APFL":
        found += [row(label, f"{s}, own models", results.of(s, method, "personal_accuracy")) for s in there]
    return found or [not_run(label, "lost")]


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for size in SIZES[scale]:
        results = Results(size, curves)
        for method in (m for m in COMPARED if m in size.methods):
            claim = f"{size.name}: from IID to {size.splits[-1]} EFL loses less accuracy than {method}"
            if results.has("EFL", method):
                found.append(better(claim, results.loss(method), results.loss("EFL"), "points"))
            else:
                found.append(Claim(claim, False, curves.why_missing(*results.names("EFL", method))))
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 1: accuracy over the rounds, IID at the left."""
    charts: list[Chart] = []
    for size in SIZES[scale]:
        for split in size.splits:
            names = {method: size.variant(split, method) for method in size.methods if method != "APFL"}
            names = {method: name for method, name in names.items() if curves.has(name)}
            if names:
                charts.append((f"{size.name} {split}: accuracy", "round", over_rounds(curves, names)))
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
