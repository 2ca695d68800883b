"""Flexible participation, Table 3 and Figure 3: schemes A, B, C as participation becomes more heterogeneous.

SYNTHETIC, MNIST, EMNIST × IID and non-IID × |T| = 1..8 × schemes A, B, C: what counting unfinished work (B over A), and
scaling it up (C over B), gains in test accuracy as devices become more different. With all devices on one trace this
is also the homogeneous column of Table 1.

The accuracy of a run is its mean over the last tenth of the rounds; the paper says "after 200 global epochs". Published
differences are read as percentage points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from turnout.experiment import Experiment
from turnout.settings import InProcess
from turnout.world.participation import Homogeneous, Participation, Traces
from turnout_papers.recipes import ONE_CORE
from turnout_papers.recipes.flexible import SCHEMES, emnist_participation, mnist_participation
from turnout_papers.recipes.flexible import participation as synthetic_participation
from turnout_papers.studies.claims import Claim, above, better, difference, mean_over, same, within
from turnout_papers.studies.published import TABLE_3
from turnout_papers.studies.study import (
    Chart,
    Curves,
    Number,
    Part,
    ResultRow,
    Study,
    StudyPlan,
    last_tenth,
    unrest,
)

FIGURE_3 = (1, 3, 5, 8)
SHORT = "EMNIST short"  # all of Table 3's EMNIST at an eighth of its cost
SHORT_ROUNDS = 25  # η0 / t sums to 3.8 η0 in 25 rounds, to 5.9 η0 in 200
ONE_TRACE = "T50"  # of all devices in the homogeneous comparison


@dataclass(frozen=True)
class ParticipationSize:
    """How large the study is at one scale; `clients` and `cap` (most samples of a client) are those of SYNTHETIC."""

    rounds: int
    clients: int
    cap: int
    traces: tuple[int, ...]
    data: tuple[str, ...]
    seeds: int
    iid_seeds: int


SIZES = {
    "smoke": ParticipationSize(4, 8, 40, (1, 2, 4, 5, 6), ("SYNTHETIC",), seeds=2, iid_seeds=1),
    "small": ParticipationSize(30, 50, 300, tuple(range(1, 9)), ("SYNTHETIC",), seeds=5, iid_seeds=2),
    "paper": ParticipationSize(
        200, 50, 2000, tuple(range(1, 9)), ("SYNTHETIC", "MNIST", "EMNIST", SHORT), seeds=5, iid_seeds=5
    ),
}


def experiments(name: str, split: str, participation: Participation, size: ParticipationSize) -> dict[str, Experiment]:
    """One cell of Table 3, by scheme: plain SGD, five epochs a round, η0 / (t + 1)."""
    iid = split != "non-IID"
    changes = {"world.participation": participation, "algorithm.nonfinite": "absent"}
    if name == "SYNTHETIC":
        made = synthetic_participation(iid=iid, clients=size.clients, cap=size.cap, rounds=size.rounds)
        changes |= {"runtime": ONE_CORE, "world.data.iid": split == "truly IID"}
    else:
        recipe = mnist_participation if name == "MNIST" else emnist_participation
        made = recipe(iid=iid, cap=6000, rounds=SHORT_ROUNDS if name == SHORT else size.rounds)
        if name != "MNIST":
            changes["runtime"] = InProcess(precision="tf32")
    return {scheme: experiment.but(**changes) for scheme, experiment in made.items()}


def variant(name: str, split: str, traces: int | str, scheme: str) -> str:
    who = f"T={traces}" if isinstance(traces, int) else f"all {traces}"
    return f"{name} {split} {who} {scheme}"


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    parts = []
    for name, split in splits(scale):
        seeds = size.seeds if split == "non-IID" else size.iid_seeds
        kinds: dict[int | str, Participation] = {j: Traces(first=j) for j in size.traces}
        if split == "non-IID":
            kinds[ONE_TRACE] = Homogeneous(ONE_TRACE)
        variants = {
            variant(name, split, traces, scheme): experiment
            for traces, kind in kinds.items()
            for scheme, experiment in experiments(name, split, kind, size).items()
            if isinstance(traces, int) or scheme != "A"
        }
        parts.append(Part(f"{name} {split}".replace(" ", "-"), variants, seeds))
    full = SIZES["paper"]
    notes = [
        "assumed, as the paper does not say: E = 5 epochs, Pareto scale 20, traces with Table 2's moments and with 5 % "
        "absence in Thi, Tmi and Tlo",
        "accuracy of a run: mean over the last tenth of its rounds (paper: after the last round)",
        f"homogeneous participation: everybody on trace {ONE_TRACE}",
    ]
    shrunk = f"{size.rounds} rounds (paper: {full.rounds}), sizes of SYNTHETIC capped at {size.cap} "
    shrunk += f"(paper scale: {full.cap}), no MNIST and EMNIST"
    shrunk += f", {size.clients} clients (paper: 50)" if size.clients != 50 else ""
    capped = f"SYNTHETIC sizes capped at {size.cap}, the others by their pool"
    emnist = (
        "EMNIST: 62 devices and classes (by class); the paper says by merge, which has 47 classes; the CNN's products "
        "rounded to TF32 where a GPU does that"
    )
    short = (
        f"{SHORT}: {SHORT_ROUNDS} rounds instead of {full.rounds}, for its cost; the learning rate falls as 1 / t, so "
        "that these rounds have 65 % of its sum"
    )
    return StudyPlan.at(scale, parts, notes, shrunk, [capped, emnist, short])


def splits(scale: str) -> list[tuple[str, str]]:
    """(data, split) of the rows; the truly IID variant of SYNTHETIC is an extra, for (0, 0) is not IID."""
    found = [(name, split) for name in SIZES[scale].data for split in ("IID", "non-IID")]
    return [*found, ("SYNTHETIC", "truly IID")] if scale == "paper" else found


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    """The cells of Table 3, and the accuracies behind them."""
    for name, split in splits(scale):
        for j in SIZES[scale].traces:
            case, published = f"{name} {split} |T|={j}", TABLE_3.get((name.removesuffix(" short"), split))
            b_over_a, c_over_b = published[j - 1] if published else (None, None)
            a, b, c = (variant(name, split, j, scheme) for scheme in SCHEMES)
            for v in (a, b, c):
                yield curves.row(case, f"accuracy {v[-1]}", v, last_tenth)
            yield curves.row(case, "B over A", (b, a), last_tenth, b_over_a)
            yield curves.row(case, "C over B", (c, b), last_tenth, c_over_b)
            yield curves.row(case, "unrest C", c, unrest)
        if split == "non-IID":
            pair = variant(name, split, ONE_TRACE, "C"), variant(name, split, ONE_TRACE, "B")
            yield curves.row(f"{name} {split} all {ONE_TRACE}", "C over B", pair, last_tenth)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    """The paper's, for every data set of the scale: those that can be decided with the |T| that were run."""
    for name in SIZES[scale].data:
        traces = SIZES[scale].traces
        there = [j for j in traces if curves.has(*(variant(name, "non-IID", j, s) for s in SCHEMES))]
        yield from _claims(name, there or list(traces), curves)


def _claims(name: str, there: list[int], curves: Curves) -> Iterator[Claim]:
    label = f"{name} non-IID"

    def number(traces: int | str, scheme: str, number: Number = last_tenth) -> dict[int, float]:
        return curves.each(variant(name, "non-IID", traces, scheme), number)

    def gain(first: str, second: str, traces: int) -> dict[int, float]:
        return difference(number(traces, first), number(traces, second))

    if 1 in there:
        alone = {scheme: number(1, scheme) for scheme in SCHEMES}
        yield same(f"{label}, |T| = 1: A, B and C agree to rounding", alone, 0.1, "points")
    if c := number(ONE_TRACE, "C"):
        claim = f"{label}, everybody on {ONE_TRACE}: B and C differ by at most 2 points"
        yield within(claim, c, number(ONE_TRACE, "B"), 2.0, "points")
    if many := [j for j in there if j >= 3]:
        listed = f"mean over |T| = {', '.join(map(str, many))}"
        for first, second in (("B", "A"), ("C", "B")):
            gains = mean_over([gain(first, second, j) for j in many])
            yield above(f"{label}, |T| >= 3: {first} > {second} ({listed})", gains, unit="points")
    if {2, 4} <= set(there):
        claim = f"{label}: B's gain over A is larger at |T| = 4 than at 2"
        yield better(claim, gain("B", "A", 4), gain("B", "A", 2), "points")
    inactive = [j for j in there if j >= 6]
    if 5 in there and inactive:
        claim = f"{label}: C's round-to-round spread is larger at |T| >= 6 than at 5"
        restless = mean_over([number(j, "C", unrest) for j in inactive])
        yield better(claim, restless, number(5, "C", unrest), "points")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 3: accuracy over rounds for |T| = 1, 3, 5, 8."""
    charts = []
    for name, j in product(SIZES[scale].data, FIGURE_3):
        lines = {f"scheme {s}": variant(name, "non-IID", j, s) for s in SCHEMES}
        charts.append(Chart(f"{name}, non-IID, |T| = {j}: accuracy", lines))
    return {"figure3.svg": charts}


STUDY = Study("participation", __doc__, "global_accuracy", plan, rows, claims, figures)
