"""Study `friend-cost`: paper 003, Figure 4: pairs compared per round and accuracy, with and without candidates.

The paper's two thresholds, Θ_t and ½ Θ_t, are above 1, where they can drop nobody, for the first 136 and 34 rounds
(K = 20, T = 500, p = .05, β = .25): they are run for 500 rounds. A tenth of Θ_t shows the same in a short run.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.parts.substitution.friends import Candidates, Friends
from turnout.running.charts.lines import line_chart
from turnout.running.charts.svg import sheet
from turnout.statistics import difference
from turnout_papers.studies.claims import Claim, above, no_worse
from turnout_papers.studies.drawing import over_rounds
from turnout_papers.studies.friend_cases import Setting, accuracy, experiment
from turnout_papers.studies.study import Curves, Part, Plan, Row, Study, not_run, row

ALPHA = 0.5
MARGIN = 1.0  # points of accuracy
WITHOUT = "without reduction"
PAIRS = "pairs_compared"


@dataclass(frozen=True)
class Comparison:
    """A comparison: one number of rounds, several thresholds."""

    data: str
    rounds: int
    scales: tuple[float, ...]
    seeds: int

    @property
    def name(self) -> str:
        return f"{Setting(self.data).case(ALPHA)}, {self.rounds} rounds"

    def variant(self, scale: float | None) -> str:
        return f"{self.name} {WITHOUT if scale is None else f'theta_scale={scale}'}"


SIZES = {
    "smoke": [Comparison("Digits", 4, (0.1,), 2)],
    "small": [Comparison("Digits", 50, (0.1,), 5), Comparison("Digits", 500, (1.0, 0.5), 3)],
    "paper": [Comparison("CIFAR-10", 500, (1.0, 0.5, 0.1), 10)],
}


def plan(scale: str) -> Plan:
    parts = []
    for compared in SIZES[scale]:
        setting, rounds = Setting(compared.data), compared.rounds
        variants = {compared.variant(None): experiment(setting, ALPHA, Friends(), rounds)}
        for theta_scale in compared.scales:
            kept = Friends(candidates=Candidates(theta_scale, rounds=rounds))
            variants[compared.variant(theta_scale)] = experiment(setting, ALPHA, kept, rounds)
        parts.append(Part(compared.name.replace(", ", " "), variants, compared.seeds))
    return Plan(parts, notes(scale))


def notes(scale: str) -> list[str]:
    found = [
        "comparisons: pairs of updates whose similarity was computed in a round, mean over the last fifth of rounds",
        "Θ_t with p = .05, β = .25, B_max = 3, δ_f = 0, of which the paper gives none, and T the rounds of the run; a "
        "client is judged after three rounds in common",
    ]
    return found if scale == "paper" else ["shrunk as study `friends`: Digits instead of CIFAR-10", *found]


def comparisons(curves: Curves, variant: str) -> dict[int, float]:
    """Pairs compared a round, mean over the last fifth."""
    return curves.of(PAIRS).each(variant, lambda curve: curve.end(5).mean())


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for compared in SIZES[scale]:
        for theta_scale in (None, *compared.scales):
            name = compared.variant(theta_scale)
            if not curves.has(name):
                found.append(not_run(name, "comparisons a round"))
                continue
            found.append(row(name, "comparisons a round", comparisons(curves, name)))
            found.append(row(name, "accuracy", curves.each(name, accuracy)))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    return [
        claim
        for compared in SIZES[scale]
        for theta_scale in compared.scales
        for claim in _claims(compared, theta_scale, curves)
    ]


def _claims(compared: Comparison, theta_scale: float, curves: Curves) -> list[Claim]:
    plain, reduced = compared.variant(None), compared.variant(theta_scale)
    label = f"{compared.name}, theta_scale {theta_scale}"
    words = f"{label}: accuracy is no worse by more than {MARGIN:g} point", f"{label}: comparisons fall"
    if not curves.has(plain, reduced):
        return [Claim(claim, False, curves.why_missing(plain, reduced)) for claim in words]
    fewer = difference(comparisons(curves, plain), comparisons(curves, reduced))
    return [
        no_worse(words[0], curves.each(reduced, accuracy), curves.each(plain, accuracy), MARGIN, "points"),
        above(words[1], fewer, unit="pairs a round"),
    ]


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 4: comparisons per round, and accuracy, over the rounds."""
    drawn = []
    for compared in SIZES[scale]:
        names = {WITHOUT: compared.variant(None)}
        names |= {f"theta_scale {s}": compared.variant(s) for s in compared.scales}
        if not curves.has(*names.values()):
            continue
        pairs = over_rounds(curves.of(PAIRS), names)
        drawn.append(line_chart(pairs, f"{compared.name}: comparisons a round", "round", "number"))
        drawn.append(line_chart(over_rounds(curves, names), f"{compared.name}: accuracy", "round", "percent"))
    return {"figure4.svg": sheet(drawn)}


STUDY = Study(
    name="friend-cost",
    reproduces="paper 003, Figure 4: comparisons per round and accuracy, with and without complexity reduction",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    more=(PAIRS,),
)
