"""EFL, Table 2: best mean test accuracy over clients, seven methods.

The mean over all clients of the accuracy of the model that each would use (its own, under APFL and FedAMP; the shared
one otherwise) on its own test data, and of that the best round. Non-IID data; every client that is asked does all the
work.
"""

from __future__ import annotations

from turnout.world.participation import Always
from turnout_papers.studies.claims import Claim
from turnout_papers.studies.drawing import one_picture, round_charts
from turnout_papers.studies.efl import (
    FULL,
    PAPER,
    PAPER_NOTES,
    SHRUNK,
    SMALL,
    EFLSetting,
    EFLSize,
    best,
    methods,
    methods_notes,
)
from turnout_papers.studies.published import TABLE_2_BMTA
from turnout_papers.studies.study import Curves, Part, ResultRow, Study, StudyPlan

METHODS = ("FedAvg", "FedGATE", "VRL-SGD", "APFL", "FedAMP", "EFL", "EFL ternary")


SIZES = {
    "smoke": EFLSize((SMALL,), (1,), rounds=3, seeds=2),
    "small": EFLSize((SMALL,), (5,), rounds=30, seeds=5),
    "paper": EFLSize(tuple(PAPER.values()), (20,), rounds=60, seeds=3),
}


def variant(setting: EFLSetting, method: str) -> str:
    return f"{setting.data} {method}"


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    variants = {
        variant(setting, method): setting.experiment(
            FULL, epochs, size.rounds, Always(), personal=True, **methods(setting)[method]
        )
        for setting, epochs in size.cases()
        for method in METHODS
    }
    notes = [
        f"E = {size.epochs[0]}, {size.rounds} rounds; two classes a client (CIFAR-10: four), speakers as they are",
        *methods_notes(size.settings),
        "the paper gives no settings, and a shared model's 81 % on CIFAR-100 beside FedAvg's 2 % is hard to believe: "
        "its numbers stand beside ours, and nothing is claimed about them",
    ]
    return StudyPlan.at(
        scale, [Part("table2", variants, size.seeds)], notes, f"{SHRUNK}; published: MNIST", PAPER_NOTES
    )


def rows(scale: str, curves: Curves) -> list[ResultRow]:
    found = []
    for setting in SIZES[scale].settings:
        published = TABLE_2_BMTA.get("MNIST" if setting is SMALL else setting.data, {})
        for method in METHODS:
            found.append(curves.row(setting.data, method, variant(setting, method), best, published.get(method)))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    return [
        curves.better(f"{s.data}: EFL's BMTA is at least FedAvg's", variant(s, "EFL"), variant(s, "FedAvg"), best)
        for s in SIZES[scale].settings
    ]


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """The mean test accuracy over the rounds."""
    names = {
        f"{setting.data}: mean accuracy of the clients": {method: variant(setting, method) for method in METHODS}
        for setting in SIZES[scale].settings
    }
    return one_picture("table2.svg", round_charts(curves, names), "percent")


STUDY = Study("bmta", __doc__, "personal_accuracy", plan, rows, claims, pictures)
