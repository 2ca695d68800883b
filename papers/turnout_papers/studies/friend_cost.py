"""FDMS, Figure 4: comparisons per round and accuracy, with and without complexity reduction.

The paper's two thresholds, Θ_t and ½ Θ_t, are above 1, where they drop no client, for the first 136 and 34 rounds
(K = 20, T = 500, p = .05, β = .25): they are run for 500 rounds. A tenth of Θ_t shows the same in a short run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from turnout.parts.substitution.friends import Candidates, Friends
from turnout_papers.recipes.friends import DropoutSetting, dropout_experiment
from turnout_papers.studies.claims import Claim
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan, last_fifth

ALPHA = 0.5
MARGIN = 1.0  # points of accuracy
WITHOUT = "without reduction"
PAIRS = "pairs_compared"


@dataclass(frozen=True)
class Reduction:
    """A comparison: one number of rounds, several thresholds."""

    data: str
    rounds: int
    scales: tuple[float, ...]
    seeds: int

    @property
    def name(self) -> str:
        return f"{DropoutSetting(self.data).case(ALPHA)}, {self.rounds} rounds"

    def variant(self, scale: float | None) -> str:
        return f"{self.name} {WITHOUT if scale is None else f'theta_scale={scale}'}"


SIZES = {
    "smoke": [Reduction("Digits", 4, (0.1,), 2)],
    "small": [Reduction("Digits", 50, (0.1,), 5), Reduction("Digits", 500, (1.0, 0.5), 3)],
    "paper": [Reduction("CIFAR-10", 500, (1.0, 0.5, 0.1), 10)],
}


def plan(scale: str) -> StudyPlan:
    parts = []
    for compared in SIZES[scale]:
        setting, rounds = DropoutSetting(compared.data), compared.rounds
        variants = {compared.variant(None): dropout_experiment(setting, ALPHA, Friends(), rounds)}
        for theta_scale in compared.scales:
            kept = Friends(candidates=Candidates(theta_scale, rounds=rounds))
            variants[compared.variant(theta_scale)] = dropout_experiment(setting, ALPHA, kept, rounds)
        parts.append(Part(compared.name.replace(", ", " "), variants, compared.seeds))
    notes = [
        "comparisons: pairs of updates whose similarity was computed in a round, mean over the last fifth of rounds",
        "Θ_t with p = .05, β = .25, B_max = 3, δ_f = 0, of which the paper gives none, and T the rounds of the run; a "
        "client is judged after three rounds in common",
    ]
    return StudyPlan.at(scale, parts, notes, "as study `friends`: Digits instead of CIFAR-10")


def pairs_in_the_end(curve: Curve) -> float:
    """Pairs compared a round, mean over the last fifth."""
    return curve.end(5).mean()


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for compared in SIZES[scale]:
        for name in (compared.variant(theta_scale) for theta_scale in (None, *compared.scales)):
            yield curves.of(PAIRS).row(name, "comparisons a round", name, pairs_in_the_end)
            yield curves.row(name, "accuracy", name, last_fifth)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for compared in SIZES[scale]:
        plain = compared.variant(None)
        for theta_scale in compared.scales:
            label, reduced = f"{compared.name}, theta_scale {theta_scale}", compared.variant(theta_scale)
            claim = f"{label}: accuracy is no worse by more than {MARGIN:g} point"
            yield curves.better(claim, reduced, plain, last_fifth, margin=MARGIN)
            pairs, claim = curves.of(PAIRS), f"{label}: comparisons fall"
            yield pairs.better(claim, plain, reduced, pairs_in_the_end, "pairs a round")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 4: comparisons per round, and accuracy, over the rounds."""
    charts = []
    for compared in SIZES[scale]:
        lines = {WITHOUT: compared.variant(None)}
        lines |= {f"theta_scale {s}": compared.variant(s) for s in compared.scales}
        charts.append(Chart(f"{compared.name}: comparisons a round", lines, PAIRS, "number"))
        charts.append(Chart(f"{compared.name}: accuracy", lines))
    return {"figure4.svg": charts}


STUDY = Study("friend-cost", __doc__, "global_accuracy", plan, rows, claims, figures, (PAIRS,))
