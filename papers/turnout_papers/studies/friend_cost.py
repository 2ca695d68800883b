"""FDMS, Figure 4: comparisons per round and accuracy, with and without complexity reduction.

The paper's two thresholds, Θ_t and ½ Θ_t, are above 1, where they drop no client, for the first 136 and 34 rounds
(K = 20, T = 500, p = .05, β = .25): they are run for 500 rounds. A tenth of Θ_t shows the same in a short run.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.parts.substitution.friends import Candidates, Friends
from turnout_papers.recipes.friends import DropoutSetting, dropout_experiment
from turnout_papers.studies.claims import Claim
from turnout_papers.studies.drawing import line_chart, over_rounds, sheet
from turnout_papers.studies.study import Curve, Curves, Part, ResultRow, Study, StudyPlan, last_fifth, row

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
    shrunk = "shrunk as study `friends`: Digits instead of CIFAR-10"
    return StudyPlan(parts, notes if scale == "paper" else [shrunk, *notes])


def pairs_in_the_end(curve: Curve) -> float:
    """Pairs compared a round, mean over the last fifth."""
    return curve.end(5).mean()


def rows(scale: str, curves: Curves) -> list[ResultRow]:
    found = []
    for compared in SIZES[scale]:
        for name in (compared.variant(theta_scale) for theta_scale in (None, *compared.scales)):
            if curves.has(name):
                found.append(curves.of(PAIRS).row(name, "comparisons a round", name, pairs_in_the_end))
                found.append(curves.row(name, "accuracy", name, last_fifth))
            else:
                found.append(row(name, "comparisons a round", None))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for compared in SIZES[scale]:
        plain = compared.variant(None)
        for theta_scale in compared.scales:
            label, reduced = f"{compared.name}, theta_scale {theta_scale}", compared.variant(theta_scale)
            claim = f"{label}: accuracy is no worse by more than {MARGIN:g} point"
            found.append(curves.better(claim, reduced, plain, last_fifth, margin=MARGIN))
            pairs, claim = curves.of(PAIRS), f"{label}: comparisons fall"
            found.append(pairs.better(claim, plain, reduced, pairs_in_the_end, "pairs a round"))
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 4: comparisons per round, and accuracy, over the rounds."""
    drawn = []
    for compared in SIZES[scale]:
        names = {WITHOUT: compared.variant(None)}
        names |= {f"theta_scale {s}": compared.variant(s) for s in compared.scales}
        if curves.has(*names.values()):
            pairs = over_rounds(curves.of(PAIRS), names)
            drawn.append(line_chart(pairs, f"{compared.name}: comparisons a round", "round", "number"))
            drawn.append(line_chart(over_rounds(curves, names), f"{compared.name}: accuracy", "round", "percent"))
    return {"figure4.svg": sheet(drawn)}


STUDY = Study("friend-cost", __doc__, "global_accuracy", plan, rows, claims, pictures, (PAIRS,))
