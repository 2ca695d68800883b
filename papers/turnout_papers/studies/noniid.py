"""EFL, Figure 1: what FedAvg, FedProx, SCAFFOLD, APFL and EFL lose on few classes a client.

IID and m classes a client (§5.2); every client that is asked does all the work. The accuracy of a run is that of the
shared model on the central test set, mean over the last fifth of the rounds; what a method loses is its accuracy on IID
data less that with the fewest classes. The paper has curves and no numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from turnout.experiment import Experiment
from turnout.world.participation import Always
from turnout_papers.studies import efl
from turnout_papers.studies.claims import Claim
from turnout_papers.studies.study import Chart, Curves, Pair, Part, ResultRow, Study, StudyPlan, last_fifth

METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "APFL", "EFL", "EFL ternary")
PERSONAL = "personal_accuracy"
COMPARED = METHODS[:4]  # with EFL
STATELESS = ("FedAvg", "FedProx", "EFL")  # the others keep a model a client: 9 GB of ResNet50


@dataclass(frozen=True)
class NonIIDSize:
    """How large the study is on one data set.

    work     E
    between  classes a client between IID and the fewest, as multiples of these
    """

    setting: efl.EFLSetting
    work: int
    rounds: int
    seeds: int
    between: tuple[int, ...] = ()
    methods: tuple[str, ...] = METHODS

    @property
    def splits(self) -> list[str]:
        """From IID to the fewest classes."""
        return self.setting.splits(self.between)

    def variant(self, split: str, method: str) -> str:
        return f"{self.setting.name} {split} {method}"

    def experiment(self, split: str, method: str) -> Experiment:
        own = method == "APFL"  # whose clients have models of their own
        made = efl.methods(self.setting)[method]
        return self.setting.experiment(split, self.work, self.rounds, participation=Always(), personal=own, **made)


SIZES = {
    "smoke": (NonIIDSize(efl.SMALL, 1, 3, seeds=2),),
    "small": (NonIIDSize(efl.SMALL, 2, 30, seeds=5, between=(2,)),),
    "paper": (
        NonIIDSize(efl.PAPER["CIFAR-10"], 20, 80, seeds=3),
        NonIIDSize(efl.SYNTHETIC, 5, 100, seeds=10),
        *(NonIIDSize(setting, 10, 30, seeds=3, methods=STATELESS) for setting in efl.RESNET),
    ),
}


def plan(scale: str) -> StudyPlan:
    parts = []
    for size in SIZES[scale]:
        made = {size.variant(s, m): size.experiment(s, m) for s in size.splits for m in size.methods}
        parts.append(Part("figure1" if scale != "paper" else size.setting.name, made, size.seeds))
    sizes = SIZES[scale]
    notes = [
        *(f"{size.setting.name}: E = {size.work}, {size.rounds} rounds" for size in sizes),
        *efl.methods_notes([size.setting for size in sizes]),
        "accuracy: the shared model's; APFL's is FedAvg's by construction, its clients' own models are in a column of "
        "their own",
    ]
    if scale != "paper":
        notes[0] = notes[0].removeprefix("digits: ")
    resnet = (
        "ResNet50 with its own stem (7x7, stride 2) on 28x28 pictures: 10 clients a round, without methods that "
        "keep a model a client (9 GB); EMNIST by class, six classes a client"
    )
    synthetic = "SYNTHETIC: 50 clients, one W for all against SYNTHETIC(1,1), everybody every round, E in epochs"
    return StudyPlan.at(scale, parts, notes, efl.SHRUNK, [*efl.PAPER_NOTES[:2], resnet, synthetic])


def lost(size: NonIIDSize, method: str) -> Pair:
    """The runs whose difference is what a method loses: IID less the fewest classes."""
    return size.variant(size.splits[0], method), size.variant(size.splits[-1], method)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for size in SIZES[scale]:
        for method in size.methods:
            label, names = f"{size.setting.name} {method}", {s: size.variant(s, method) for s in size.splits}
            for split, name in names.items():
                yield curves.row(label, split, name, last_fifth)
            yield curves.row(label, "lost", lost(size, method), last_fifth)
            if method == "APFL":
                for split, name in names.items():
                    yield curves.of(PERSONAL).row(label, f"{split}, own models", name, last_fifth)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for size in SIZES[scale]:
        for method in COMPARED:
            if method in size.methods:
                claim = f"{size.setting.name}: from IID to {size.splits[-1]} EFL loses less accuracy than {method}"
                yield curves.better(claim, lost(size, method), lost(size, "EFL"), last_fifth)


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 1: accuracy over the rounds, IID at the left."""
    charts = []
    for size in SIZES[scale]:
        for split in size.splits:
            lines = {m: size.variant(split, m) for m in size.methods if m != "APFL"}
            charts.append(Chart(f"{size.setting.name} {split}: accuracy", lines))
    return {"figure1.svg": charts}


STUDY = Study("noniid", __doc__, "global_accuracy", plan, rows, claims, figures, (PERSONAL,))
