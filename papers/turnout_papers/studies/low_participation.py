"""Study `low-participation`: paper 001, Figure 3 and §5.4: what unfinished work is worth when few turn up.

A share of the clients is asked every round, and those finish what their trace allows. FedAvg throws unfinished work
away (the complete are averaged); FedAvg + C scales it up by E / s, and nothing else; EFL has the elastic term besides.
The accuracy of a run is its mean over the last fifth of the rounds. The paper has curves and no numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from turnout.experiment import Experiment
from turnout.parts.substitution.base import Spread
from turnout.parts.weighting import ByWork, CompleteOnly
from turnout.statistics import difference
from turnout_papers.studies.claims import Claim, better
from turnout_papers.studies.drawing import Chart, band, over_rounds, picture
from turnout_papers.studies.efl import FULL, PAPER, PAPER_NOTES, SMALL, Setting, accuracy, efl
from turnout_papers.studies.study import Curves, Part, Plan, Row, Study, not_run, row

DROPS, USES, EFL = METHODS = ("FedAvg", "FedAvg + C", "EFL")


@dataclass(frozen=True)
class Size:
    """How large the study is at one scale."""

    settings: tuple[Setting, ...]
    shares: tuple[float, ...]  # of the clients that are asked, most first
    epochs: int  # E: epochs, or mini-batches at paper scale
    rounds: int
    seeds: int


SIZES = {
    "smoke": Size((SMALL,), (1.0, 0.2), 5, 4, seeds=2),
    "small": Size((SMALL,), (1.0, 0.5, 0.2), 5, 40, seeds=8),
    "paper": Size(
        tuple(replace(PAPER[data], clients=40) for data in ("Sentiment140", "Shakespeare")),
        (1.0, 0.5, 0.1),
        20,
        60,
        seeds=3,
    ),
}


def case(setting: Setting, share: float) -> str:
    return f"{setting.data} {100 * share:g} % asked"


def variant(setting: Setting, share: float, method: str) -> str:
    return f"{case(setting, share)} {method}"


def cases(scale: str) -> list[tuple[Setting, float]]:
    return [(setting, share) for setting in SIZES[scale].settings for share in SIZES[scale].shares]


def algorithm(setting: Setting, method: str) -> dict[str, Any]:
    if method == DROPS:
        return {"weighting": CompleteOnly(), "substitution": Spread()}
    return efl(setting) if method == EFL else {"weighting": ByWork()}


def experiment(setting: Setting, share: float, method: str, size: Size) -> Experiment:
    asked = replace(setting, asked=share)
    return asked.experiment(FULL, size.epochs, size.rounds, **algorithm(setting, method))


def plan(scale: str) -> Plan:
    size = SIZES[scale]
    variants = {
        variant(setting, share, method): experiment(setting, share, method, size)
        for setting, share in cases(scale)
        for method in METHODS
    }
    found = [
        f"E = {size.epochs}; those asked finish what the first five traces of paper 000 allow: a fifth of them, all",
        "FedAvg: the complete are averaged, unfinished work is thrown away; FedAvg + C: scheme C and nothing else; "
        "EFL: scheme C and the elastic term, without compression (study `bytes` has that)",
        f"λ = {', '.join(f'{s.strength:g} ({s.data})' for s in size.settings)}, not chosen on these seeds",
        "accuracy of a run: mean over the last fifth of its rounds",
    ]
    if scale == "paper":
        ours = f"ours: 40 clients, E in mini-batches of 10 to 20, {size.rounds} rounds, LSTMs of two layers of 256"
        return Plan([Part("figure3", variants, size.seeds)], [*found, ours, PAPER_NOTES[-1]])
    shrunk = f"shrunk: 8x8 digits for the two texts, {SMALL.clients} clients, a small CNN, {size.rounds} rounds"
    return Plan([Part("figure3", variants, size.seeds)], [shrunk, *found])


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for setting, share in cases(scale):
        label, names = case(setting, share), {m: variant(setting, share, m) for m in METHODS}
        value = {method: curves.each(name, accuracy) for method, name in names.items() if curves.has(name)}
        found += [row(label, f"accuracy {method}", own) for method, own in value.items()]
        for method, words in ((USES, "gain of C"), (EFL, "gain of EFL")):
            if method in value and DROPS in value:
                found.append(row(label, words, difference(value[method], value[DROPS])))
        if not value:
            found.append(not_run(label, "accuracy FedAvg"))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    """A method is better at every level of participation, and gains more at the lowest than at the highest."""
    found = []
    for setting in SIZES[scale].settings:
        for method, words, gain in (
            (USES, "using unfinished work beats dropping it", "the gain of unfinished work"),
            (EFL, "EFL beats FedAvg", "EFL's gain over FedAvg"),
        ):
            gains = Gains(setting, SIZES[scale].shares, method, curves)
            found += [gains.at(share, words) for share in gains.shares]
            found.append(gains.grow(gain))
    return found


@dataclass(frozen=True)
class Gains:
    """What a method gains over dropping unfinished work, as fewer are asked."""

    setting: Setting
    shares: tuple[float, ...]
    method: str
    curves: Curves

    def names(self, *shares: float) -> list[str]:
        return [variant(self.setting, share, method) for share in shares for method in (self.method, DROPS)]

    def gain(self, share: float) -> dict[int, float]:
        return difference(*(self.curves.each(name, accuracy) for name in self.names(share)))

    def at(self, share: float, words: str) -> Claim:
        claim, names = f"{case(self.setting, share)}: {words}", self.names(share)
        if not self.curves.has(*names):
            return Claim(claim, False, self.curves.why_missing(*names))
        ours, theirs = (self.curves.each(name, accuracy) for name in names)
        return better(claim, ours, theirs, "points")

    def grow(self, words: str) -> Claim:
        most, least = self.shares[0], self.shares[-1]
        ends = f"with {100 * least:g} % asked than with {100 * most:g} %"
        claim, names = f"{self.setting.data}: {words} is larger {ends}", self.names(most, least)
        if not self.curves.has(*names):
            return Claim(claim, False, self.curves.why_missing(*names))
        return better(claim, self.gain(least), self.gain(most), "points")


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 3: accuracy over the rounds at each level, and final accuracy over the levels."""
    charts: list[Chart] = []
    for setting in SIZES[scale].settings:
        there = [share for share in SIZES[scale].shares if curves.has(*(variant(setting, share, m) for m in METHODS))]
        for share in there:
            lines = over_rounds(curves, {method: variant(setting, share, method) for method in METHODS})
            charts.append((f"{case(setting, share)}: accuracy", "round", lines))
        if there:
            lines = [
                band(m, there, [curves.each(variant(setting, s, m), accuracy) for s in there], i, 0.01)
                for i, m in enumerate(METHODS)
            ]
            charts.append((f"{setting.data}: final accuracy", "share of the clients asked", lines))
    return {"figure3.svg": picture(charts, "percent")} if charts else {}


STUDY = Study(
    name="low-participation",
    reproduces="paper 001, Figure 3: unfinished work thrown away and used, as fewer turn up",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
)
