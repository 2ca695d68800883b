"""EFL, Figure 3: unfinished work thrown away and used, as fewer turn up.

A share of the clients is asked every round, and they finish what their trace allows (§5.4). FedAvg throws unfinished
work away (the complete are averaged); FedAvg + C scales it up by E / s, and nothing else; EFL has the elastic term
besides. The accuracy of a run is its mean over the last fifth of the rounds. The paper has curves and no numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from turnout.experiment import Experiment
from turnout.parts.substitution.base import Spread
from turnout.parts.weighting import ByWork, CompleteOnly
from turnout_papers.studies.claims import Claim
from turnout_papers.studies.efl import FULL, PAPER, PAPER_NOTES, SMALL, EFLSetting, EFLSize, efl
from turnout_papers.studies.study import Chart, Curves, Pair, Part, ResultRow, Study, StudyPlan, last_fifth

DROPS, USES, EFL = METHODS = ("FedAvg", "FedAvg + C", "EFL")


SIZES = {
    "smoke": EFLSize((SMALL,), (5,), rounds=4, seeds=2, shares=(1.0, 0.2)),
    "small": EFLSize((SMALL,), (5,), rounds=40, seeds=8, shares=(1.0, 0.5, 0.2)),
    "paper": EFLSize(
        tuple(replace(PAPER[data], clients=40) for data in ("Sentiment140", "Shakespeare")),
        (20,), rounds=60, seeds=3, shares=(1.0, 0.5, 0.1),
    ),
}  # fmt: skip


def case(setting: EFLSetting, share: float) -> str:
    return f"{setting.data} {100 * share:g} % asked"


def variant(setting: EFLSetting, share: float, method: str) -> str:
    return f"{case(setting, share)} {method}"


def cases(scale: str) -> list[tuple[EFLSetting, float]]:
    return [(setting, share) for setting in SIZES[scale].settings for share in SIZES[scale].shares]


def experiment(setting: EFLSetting, share: float, method: str, size: EFLSize) -> Experiment:
    algorithms: dict[str, dict[str, Any]] = {
        DROPS: {"weighting": CompleteOnly(), "substitution": Spread()},
        USES: {"weighting": ByWork()},
        EFL: efl(setting),
    }
    return replace(setting, asked=share).experiment(FULL, size.epochs[0], size.rounds, **algorithms[method])


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    variants = {
        variant(setting, share, method): experiment(setting, share, method, size)
        for setting, share in cases(scale)
        for method in METHODS
    }
    found = [
        f"E = {size.epochs[0]}; those asked finish what the first five traces of flexible participation allow: a "
        "fifth of them, all",
        "FedAvg: the complete are averaged, unfinished work is thrown away; FedAvg + C: scheme C and nothing else; "
        "EFL: scheme C and the elastic term, without compression (study `bytes` has that)",
        f"λ = {', '.join(f'{s.strength:g} ({s.data})' for s in size.settings)}, not chosen on these seeds",
        "accuracy of a run: mean over the last fifth of its rounds",
    ]
    ours = f"ours: 40 clients, E in mini-batches of 10 to 20, {size.rounds} rounds, LSTMs of two layers of 256"
    shrunk = f"8x8 digits for the two texts, {SMALL.clients} clients, a small CNN, {size.rounds} rounds"
    return StudyPlan.at(scale, [Part("figure3", variants, size.seeds)], found, shrunk, [ours, PAPER_NOTES[-1]])


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for setting, share in cases(scale):
        label, names = case(setting, share), {m: variant(setting, share, m) for m in METHODS}
        for method, name in names.items():
            yield curves.row(label, f"accuracy {method}", name, last_fifth)
        for method, words in ((USES, "gain of C"), (EFL, "gain of EFL")):
            yield curves.row(label, words, (names[method], names[DROPS]), last_fifth)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    """A method is better at every level of participation, and gains more at the lowest than at the highest."""
    shares = SIZES[scale].shares
    compared = (
        (USES, "using unfinished work beats dropping it", "the gain of unfinished work"),
        (EFL, "EFL beats FedAvg", "EFL's gain over FedAvg"),
    )
    for setting, (method, words, gain) in product(SIZES[scale].settings, compared):
        pairs: list[Pair] = [(variant(setting, s, method), variant(setting, s, DROPS)) for s in shares]
        for share, (ours, theirs) in zip(shares, pairs, strict=True):
            yield curves.better(f"{case(setting, share)}: {words}", ours, theirs, last_fifth)
        ends = f"with {100 * shares[-1]:g} % asked than with {100 * shares[0]:g} %"
        yield curves.better(f"{setting.data}: {gain} is larger {ends}", pairs[-1], pairs[0], last_fifth)


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 3: accuracy over the rounds at each level."""
    return {
        "figure3.svg": [
            Chart(f"{case(setting, share)}: accuracy", {m: variant(setting, share, m) for m in METHODS})
            for setting, share in cases(scale)
        ]
    }


STUDY = Study("low-participation", __doc__, "global_accuracy", plan, rows, claims, figures)
