"""Study `participation`: paper 000, Table 3 and Figure 3 (and the homogeneous column of Table 1).

SYNTHETIC, MNIST, EMNIST × IID and non-IID × |T| = 1..8 × schemes A, B, C: what counting unfinished work (B over A), and
scaling it up (C over B), brings in test accuracy as devices become more different.

The accuracy of a run is its mean over the last tenth of the rounds; the paper says "after 200 global epochs". Published
differences are read as percentage points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

import turnout.models as models
from turnout.data import EMNIST, MNIST, Pareto, Synthetic
from turnout.data.partition import IID, OneLabel
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.schedules import InverseClock
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, Weighting
from turnout.settings import InProcess
from turnout.statistics import difference, mean_over
from turnout.world.participation import Homogeneous, Participation, Traces
from turnout_papers.studies.claims import Claim, above, better, same, within
from turnout_papers.studies.drawing import band, over_rounds, picture
from turnout_papers.studies.published import TABLE_3
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row

SCHEMES: dict[str, Weighting] = {"A": CompleteOnly(), "B": ByShare(), "C": ByWork()}
FIGURE_3 = (1, 3, 5, 8)
ONE_TRACE = "T50"  # what everybody has in the homogeneous comparison


@dataclass(frozen=True)
class Size:
    """How large the study is at one scale."""

    rounds: int
    clients: int  # of SYNTHETIC
    cap: int  # most samples of a client of SYNTHETIC
    traces: tuple[int, ...]
    data: tuple[str, ...]
    seeds: int
    iid_seeds: int


SIZES = {
    "smoke": Size(4, 8, 40, (1, 2, 4, 5, 6), ("SYNTHETIC",), seeds=2, iid_seeds=1),
    "small": Size(30, 50, 300, tuple(range(1, 9)), ("SYNTHETIC",), seeds=5, iid_seeds=2),
    "paper": Size(200, 50, 2000, tuple(range(1, 9)), ("SYNTHETIC", "MNIST", "EMNIST"), seeds=5, iid_seeds=5),
}


def data_set(name: str, split: str, size: Size) -> tuple[DataSpec, Model, float, int]:
    """Data, model, first learning rate and batch size of a row of Table 3."""
    if name == "SYNTHETIC":
        spread = 1.0 if split == "non-IID" else 0.0
        made = Synthetic(spread, spread, size.clients, iid=split == "truly IID", sizes=Pareto(cap=size.cap))
        return made, models.Logistic(), 1.0, 20
    dealt: dict[str, Any] = {"partition": IID() if split == "IID" else OneLabel(), "sizes": Pareto(cap=6000)}
    dealt["test_share"] = 0.0  # these sets have a test set of their own
    if name == "MNIST":
        return MNIST(clients=100, **dealt), models.MLP(200, 200), 2e-3, 10
    return EMNIST(split="byclass", clients=62, **dealt), models.mcmahan_cnn(), 5e-4, 10


def experiment(name: str, split: str, participation: Participation, weighting: Weighting, size: Size) -> Experiment:
    """One cell of Table 3: plain SGD, five epochs a round, η0 / (t + 1)."""
    data, model, lr, batch_size = data_set(name, split, size)
    local = Local(SGD(lr=lr), epochs=5, batch_size=batch_size, schedule=InverseClock())
    return Experiment(
        world=World(data, participation),
        model=model,
        algorithm=Algorithm(local=local, weighting=weighting, nonfinite="absent"),
        rounds=size.rounds,
        runtime=InProcess(device="cpu", threads=1) if name == "SYNTHETIC" else InProcess(),  # tiny models: one core
    )


def variant(name: str, split: str, traces: int | str, scheme: str) -> str:
    """What one of the experiments is called.

    >>> variant("MNIST", "IID", 3, "B"), variant("MNIST", "IID", "T50", "B")
    ('MNIST IID T=3 B', 'MNIST IID all T50 B')
    """
    who = f"T={traces}" if isinstance(traces, int) else f"all {traces}"
    return f"{name} {split} {who} {scheme}"


def plan(scale: str) -> Plan:
    size = SIZES[scale]
    parts = []
    for name, split in splits(scale):
        seeds = size.seeds if split == "non-IID" else size.iid_seeds
        kinds: dict[int | str, Participation] = {j: Traces(first=j) for j in size.traces}
        if split == "non-IID":
            kinds[ONE_TRACE] = Homogeneous(ONE_TRACE)
        variants = {
            variant(name, split, traces, scheme): experiment(name, split, kind, SCHEMES[scheme], size)
            for traces, kind in kinds.items()
            for scheme in (SCHEMES if isinstance(traces, int) else ("B", "C"))
        }
        parts.append(Part(f"{name} {split}".replace(" ", "-"), variants, seeds))
    return Plan(parts, notes(scale))


def splits(scale: str) -> list[tuple[str, str]]:
    """(data, split) of the rows; the truly IID variant of SYNTHETIC is an extra, for (0, 0) is not IID."""
    found = [(name, split) for name in SIZES[scale].data for split in ("IID", "non-IID")]
    return [*found, ("SYNTHETIC", "truly IID")] if scale == "paper" else found


def notes(scale: str) -> list[str]:
    """What was shrunk, and what had to be assumed."""
    size, full = SIZES[scale], SIZES["paper"]
    found = [
        "assumed, as the paper does not say: E = 5 epochs, Pareto scale 20, traces with Table 2's moments and with 5 % "
        "absence in Thi, Tmi and Tlo",
        "accuracy of a run: mean over the last tenth of its rounds (paper: after the last round)",
        f"homogeneous participation: everybody on trace {ONE_TRACE}",
    ]
    if scale == "paper":
        kinds = "62 devices and classes (by class); the paper says by merge, which has 47 classes"
        return [*found, f"SYNTHETIC sizes capped at {size.cap}, the others by their pool", f"EMNIST: {kinds}"]
    shrunk = (
        f"shrunk: {size.rounds} rounds (paper: {full.rounds}), sizes of SYNTHETIC capped at {size.cap} (paper scale: "
    )
    shrunk += f"{full.cap}), no MNIST and EMNIST"
    return [shrunk + (f", {size.clients} clients (paper: 50)" if size.clients != 50 else ""), *found]


def accuracy(curve: Curve) -> float:
    """Percent, mean over the last tenth of the rounds."""
    return 100 * curve.end(10).mean()


def unrest(curve: Curve) -> float:
    """Round-to-round spread: root mean square change of accuracy from round to round, last half, in points."""
    later_T = curve.value_T[curve.round_T >= int(curve.round_T[-1] + 1) // 2]
    return 100 * math.sqrt(float(np.square(np.diff(later_T)).mean())) if len(later_T) > 1 else math.nan


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for name, split in splits(scale):
        for j in SIZES[scale].traces:
            found += case_rows(name, split, j, curves)
        if split == "non-IID":
            found.append(_homogeneous_row(name, split, curves))
    return found


def case_rows(name: str, split: str, j: int, curves: Curves) -> list[Row]:
    """One cell of Table 3, and the accuracies behind it."""
    case = f"{name} {split} |T|={j}"
    published = TABLE_3.get((name, split))
    b_over_a, c_over_b = published[j - 1] if published else (None, None)
    names = [variant(name, split, j, scheme) for scheme in SCHEMES]
    if not curves.has(*names):
        return [not_run(case, "B over A", b_over_a), not_run(case, "C over B", c_over_b)]
    a, b, c = (curves.each(n, accuracy) for n in names)
    return [
        *(row(case, f"accuracy {s}", value) for s, value in zip(SCHEMES, (a, b, c), strict=True)),
        row(case, "B over A", difference(b, a), b_over_a),
        row(case, "C over B", difference(c, b), c_over_b),
        row(case, "unrest C", curves.each(names[2], unrest)),
    ]


def _homogeneous_row(name: str, split: str, curves: Curves) -> Row:
    case, names = f"{name} {split} all {ONE_TRACE}", [variant(name, split, ONE_TRACE, scheme) for scheme in "BC"]
    if not curves.has(*names):
        return not_run(case, "C over B")
    b, c = (curves.each(n, accuracy) for n in names)
    return row(case, "C over B", difference(c, b))


def claims(scale: str, curves: Curves) -> list[Claim]:
    """The paper's, for every data set of the scale."""
    found = []
    for name in SIZES[scale].data:
        split, label = "non-IID", f"{name} non-IID"
        names = {j: [variant(name, split, j, s) for s in SCHEMES] for j in SIZES[scale].traces}
        there = tuple(j for j in names if curves.has(*names[j]))
        if there:
            found += _claims(label, SplitNumbers(name, split, there, curves))
        else:
            found.append(Claim(f"{label}: the claims of Table 3", False, curves.why_missing(*chain(*names.values()))))
    return found


@dataclass(frozen=True)
class SplitNumbers:
    """The numbers of one data set and split."""

    name: str
    split: str
    traces: tuple[int, ...]
    curves: Curves

    def each(self, traces: int | str, scheme: str, number: Callable[[Curve], float] = accuracy) -> dict[int, float]:
        return self.curves.each(variant(self.name, self.split, traces, scheme), number)

    def gain(self, first: str, second: str, traces: int) -> dict[int, float]:
        return difference(self.each(traces, first), self.each(traces, second))


def _claims(label: str, numbers: SplitNumbers) -> list[Claim]:
    """Those that can be decided with the |T| that were run."""
    there = numbers.traces
    many, inactive = [j for j in there if j >= 3], [j for j in there if j >= 6]
    listed = f"mean over |T| = {', '.join(map(str, many))}"
    found = []
    if 1 in there:
        alone = {scheme: numbers.each(1, scheme) for scheme in SCHEMES}
        found.append(same(f"{label}, |T| = 1: A, B and C agree to rounding", alone, 0.1, "points"))
    if numbers.curves.has(*(variant(numbers.name, numbers.split, ONE_TRACE, scheme) for scheme in "BC")):
        homogeneous, claim = (numbers.each(ONE_TRACE, "C"), numbers.each(ONE_TRACE, "B")), "differ by at most 2 points"
        found.append(within(f"{label}, everybody on {ONE_TRACE}: B and C {claim}", *homogeneous, 2.0, "points"))
    if many:
        for better_one, other in (("B", "A"), ("C", "B")):
            gain = mean_over([numbers.gain(better_one, other, j) for j in many])
            found.append(above(f"{label}, |T| >= 3: {better_one} > {other} ({listed})", gain, unit="points"))
    if {2, 4} <= set(there):
        growth = difference(numbers.gain("B", "A", 4), numbers.gain("B", "A", 2))
        found.append(above(f"{label}: B's gain over A is larger at |T| = 4 than at 2", growth, unit="points"))
    if 5 in there and inactive:
        calm, restless = numbers.each(5, "C", unrest), mean_over([numbers.each(j, "C", unrest) for j in inactive])
        found.append(
            better(f"{label}: C's round-to-round spread is larger at |T| >= 6 than at 5", restless, calm, "points")
        )
    return found


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Table 3 as curves over |T|, and Figure 3: accuracy over rounds for |T| = 1, 3, 5, 8."""
    table_3, figure_3 = [], []
    for name, split in splits(scale):
        names = {j: [variant(name, split, j, scheme) for scheme in SCHEMES] for j in SIZES[scale].traces}
        names = {j: three for j, three in names.items() if curves.has(*three)}
        lines = zip(SCHEMES, *names.values(), strict=True)
        series = [
            band(f"scheme {scheme}", list(names), [curves.each(v, accuracy) for v in line], i, 0.01)
            for i, (scheme, *line) in enumerate(lines)
        ]
        table_3.append((f"{name}, {split}: accuracy", "number of traces |T|", series))
        for j in FIGURE_3 if split == "non-IID" else ():
            if j in names:
                series = over_rounds(curves, {f"scheme {v[-1]}": v for v in names[j]})
                figure_3.append((f"{name}, {split}, |T| = {j}: accuracy", "round", series))
    return {"table3.svg": picture(table_3, "percent"), "figure3.svg": picture(figure_3, "percent")}


STUDY = Study(
    name="participation",
    reproduces="paper 000, Table 3 and Figure 3: schemes A, B, C as participation becomes more heterogeneous",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
)
