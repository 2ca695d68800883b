"""Flexible participation, Table 5, Figure 4 (right): include or exclude a device that leaves, and deciding which.

The last device leaves in round τ0. `include` is tested on the test samples of all devices, `exclude` on those of the
devices that are left, as in the paper; the losses cross when excluding begins to pay. `decide` has to say at τ0 which
of the two will have the smaller loss at a deadline, from the loss curve up to then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import correlation

import numpy as np

from turnout.experiment import Experiment
from turnout.parts.membership.departure import Bounds, should_exclude
from turnout_papers.recipes import on_one_core
from turnout_papers.recipes.flexible import departure
from turnout_papers.studies.claims import Claim, above, better, mean_over
from turnout_papers.studies.published import TABLE_5
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan, row

LEAVES = ("include", "exclude")
CONSTANTS = ("D", "V", "gamma", "Gamma_l", "E", "noise")


@dataclass(frozen=True)
class DeparturesSize:
    """How large the study is at one scale: departures in rounds `taus`, judged at deadlines τ0 + `remaining`.

    `spreads` are α = β of SYNTHETIC.
    """

    taus: tuple[int, ...]
    spreads: tuple[float, ...]
    remaining: tuple[int, ...]
    clients: int
    samples: int
    seeds: int

    @property
    def after(self) -> int:
        return max(self.remaining)


REMAINING = (2, 5, 10, 20, 40, 80)
SIZES = {
    "smoke": DeparturesSize((3, 4), (0.1, 1.0), (1, 2, 4), 6, 30, 2),
    "small": DeparturesSize((10, 20, 30, 40, 50), (0.1, 1.0), REMAINING, 30, 125, 8),
    "paper": DeparturesSize(tuple(range(10, 51, 5)), (0.1, 0.5, 1.0), REMAINING, 30, 500, 10),
}


def variant(spread: float, tau: int, leave: str) -> str:
    return f"({spread:g}, {spread:g}) {tau} {leave}"


def plan(scale: str) -> StudyPlan:
    size = SIZES[scale]
    runs: dict[str, Experiment] = {}
    for spread in size.spreads:
        for tau in size.taus:
            made = departure(tau, spread, size.clients, size.samples, rounds=tau + size.after)
            made["decide"] = made["decide"].but(rounds=tau + 1)  # what it would say is known when the device leaves
            runs |= {variant(spread, tau, leave): experiment for leave, experiment in on_one_core(made).items()}
    parts = [Part("SYNTHETIC", runs, size.seeds)]
    notes = [
        "assumed, as the paper does not say: E = 5 epochs, traces with Table 2's moments",
        f"{size.samples} samples a device, a fifth of them for testing",
        f"a run whose losses have not met after {size.after} rounds counts as {size.after}",
        "`decide` is right at a deadline if it names the one with the smaller test loss there; how its constants are "
        "fitted was chosen on other seeds (100 to 103)",
    ]
    shrunk = f"τ0 = {', '.join(map(str, size.taus))} (paper: 10 to 50 by 5), {size.samples} samples a device "
    shrunk += f"(paper scale: {SIZES['paper'].samples}), (α, β) without (.5, .5)"
    return StudyPlan.at(scale, parts, notes, shrunk)


def crossing(kept: Curve, out: Curve, tau: int, last: int) -> float:
    """Rounds from τ0 on until the loss of exclude is down at that of include."""
    met_T = (kept.round_T >= tau) & (out.value_T <= kept.value_T)
    return float(kept.round_T[met_T][0] - tau + 1) if met_T.any() else float(last)


def both(curves: Curves, spread: float, tau: int) -> dict[int, tuple[Curve, Curve]]:
    """The curves of include and of exclude, by seed."""
    kept, out = (curves.curves.get(variant(spread, tau, leave), {}) for leave in LEAVES)
    return {seed: (kept[seed], out[seed]) for seed in kept if seed in out}


def crossings(curves: Curves, spread: float, tau: int, size: DeparturesSize) -> dict[int, float]:
    return {seed: crossing(*pair, tau, size.after) for seed, pair in both(curves, spread, tau).items()}


def excluding_pays(kept: Curve, out: Curve, tau: int, remaining: int) -> bool:
    """Whether exclude has the smaller test loss at the deadline."""
    at = kept.round_T == tau + remaining - 1
    return bool(out.value_T[at][0] < kept.value_T[at][0])


def right(curves: Curves, spread: float, tau: int, size: DeparturesSize, choice: str) -> dict[int, float]:
    """Share of the deadlines at which a choice has the smaller test loss, by seed."""
    found = {}
    for seed, pair in both(curves, spread, tau).items():
        says = [
            says_exclude(curves, spread, tau, seed, x) if choice == "decide" else choice == "exclude"
            for x in size.remaining
        ]
        pays = [excluding_pays(*pair, tau, x) for x in size.remaining]
        found[seed] = float(np.mean(np.equal(says, pays)))
    return found


def says_exclude(curves: Curves, spread: float, tau: int, seed: int, remaining: int) -> bool:
    """What the crossing rule says for a deadline, from the recorded constants; without them, exclude."""
    name = variant(spread, tau, "decide")
    known = {c: curves.of(f"decide_{c}").curves.get(name, {}).get(seed) for c in CONSTANTS}
    values = {c: float(curve.value_T[-1]) for c, curve in known.items() if curve is not None and len(curve.value_T)}
    return len(values) < len(CONSTANTS) or should_exclude(Bounds(**values), tau, tau + remaining)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    size = SIZES[scale]
    for spread, tau in product(size.spreads, size.taus):
        case = f"({spread:g}, {spread:g}) τ0={tau}"
        met = crossings(curves, spread, tau, size)
        yield row(case, "rounds until they meet", met, TABLE_5[spread].get(tau))
        for choice in (*LEAVES, "decide"):
            yield row(case, f"{choice} is right", right(curves, spread, tau, size, choice))


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where one of the two does not vary.

    >>> round(spearman([10, 20, 30, 40], [1, 5, 3, 9]), 9)
    0.8
    """
    first, second = ([sum((w < v) + (w == v) / 2 for w in values) for v in values] for values in (x, y))
    return correlation(first, second) if min(len(set(first)), len(set(second))) > 1 else 0.0


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    size = SIZES[scale]
    met = {spread: [crossings(curves, spread, tau, size) for tau in size.taus] for spread in size.spreads}
    seeds = set.intersection(*(set(by_seed) for found in met.values() for by_seed in found))
    rank = mean_over(
        [{seed: spearman(size.taus, [m[seed] for m in met[spread]]) for seed in sorted(seeds)} for spread in met]
    )
    yield above("the round in which include and exclude meet grows with τ0 (Spearman)", rank)
    low, high = size.spreads[0], size.spreads[-1]
    claim = f"they meet later on ({high:g}, {high:g}) than on ({low:g}, {low:g})"
    yield better(claim, mean_over(met[high]), mean_over(met[low]), "rounds")
    cases = list(product(size.spreads, size.taus))
    shares = {c: mean_over([right(curves, *one, size, c) for one in cases]) for c in (*LEAVES, "decide")}
    fixed = max(LEAVES, key=lambda choice: sum(shares[choice].values()))
    listed = ", ".join(map(str, size.remaining))
    claim = f"T - τ0 = {listed}: decide is right more often than the better fixed choice ({fixed})"
    yield better(claim, shares["decide"], shares[fixed])


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 4 right: test losses around the departure."""
    size, charts = SIZES[scale], []
    tau = size.taus[len(size.taus) // 2]
    for s in size.spreads:
        lines = {leave: variant(s, tau, leave) for leave in LEAVES}
        charts.append(Chart(f"({s:g}, {s:g}), a departure in round {tau}: test loss", lines, unit="number"))
    return {"figure4.svg": charts}


MORE = tuple(f"decide_{name}" for name in CONSTANTS)
STUDY = Study("departures", __doc__, "global_loss", plan, rows, claims, figures, MORE)
