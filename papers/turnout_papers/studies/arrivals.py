"""Flexible participation, Table 4, Figure 4 (left), Figure 5: fast-reboot when a device arrives.

The last device joins in round τ0. From then on the test set has its samples too; counted are the rounds until accuracy
is back at what it was in round τ0 - 1, with the newcomer's share boosted (fast) or not (vanilla). In Figure 5 three
devices arrive one after another, and rounds are counted until the next arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from turnout.world.events import Join
from turnout_papers.recipes import on_one_core
from turnout_papers.recipes.flexible import arrival, emnist_arrival, mnist_arrival
from turnout_papers.studies.claims import Claim, better, censored, difference, sooner
from turnout_papers.studies.published import TABLE_4
from turnout_papers.studies.study import Chart, Curve, Curves, Part, ResultRow, Study, StudyPlan, row

KINDS = {"fast": "fast-reboot", "vanilla": "vanilla"}
PICTURES = {"MNIST": mnist_arrival, "EMNIST": emnist_arrival}


@dataclass(frozen=True)
class ArrivalsSize:
    """How large the study is at one scale.

    taus            rounds of the arrivals of Table 4
    after           for how many rounds a run goes on after an arrival
    clients         of SYNTHETIC
    samples         of a client of SYNTHETIC
    in_a_row        rounds of the arrivals of Figure 5
    in_a_row_seeds  and its seeds
    """

    taus: tuple[int, ...]
    after: int
    clients: int
    samples: int
    seeds: int
    in_a_row: tuple[int, ...]
    in_a_row_seeds: int
    data: tuple[str, ...] = ("SYNTHETIC",)


SIZES = {
    "smoke": ArrivalsSize((2, 4, 5, 6), 3, 6, 30, 2, (2, 4, 6), 1),
    "small": ArrivalsSize((10, 30, 50, 70), 40, 30, 125, 24, (30, 50, 70), 6),
    "paper": ArrivalsSize((10, 30, 50, 70), 100, 30, 500, 10, (100, 150, 200), 5, ("SYNTHETIC", "MNIST", "EMNIST")),
}


def variant(name: str, tau: int, kind: str) -> str:
    return f"{name} {tau} {kind}"


def in_a_row(name: str, kind: str) -> str:
    return f"{name} in a row {kind}"


def plan(scale: str) -> StudyPlan:
    """Table 4's arrivals; and Figure 5: the last three of ten devices (SYNTHETIC: of all) arrive one after another."""
    size, parts = SIZES[scale], []
    last = size.in_a_row[-1]
    for name in size.data:
        clients = 10 if name in PICTURES else size.clients
        if name in PICTURES:
            made = {tau: PICTURES[name](tau, rounds=tau + size.after) for tau in (*size.taus, last)}
        else:
            made = {
                tau: on_one_core(arrival(tau, clients, size.samples, rounds=tau + size.after))
                for tau in (*size.taus, last)
            }
        runs = {variant(name, tau, kind): made[tau][join] for tau in size.taus for kind, join in KINDS.items()}
        parts.append(Part(name, runs, size.seeds))
        events = tuple(Join(clients - 3 + i, t) for i, t in enumerate(size.in_a_row))
        runs = {in_a_row(name, kind): made[last][join].but(**{"world.events": events}) for kind, join in KINDS.items()}
        parts.append(Part(f"{name}-in-a-row", runs, size.in_a_row_seeds))
    notes = [
        "assumed, as the paper does not say: E = 5 epochs, traces with Table 2's moments, boost 1 + 2 / (t - τ0 + 1)²",
        f"a run that is not back after {size.after} rounds counts as {size.after}",
        f"{size.samples} samples a device of SYNTHETIC, a fifth of them for testing",
    ]
    shrunk = f"no MNIST and EMNIST; watched for {size.after} rounds (paper scale: {SIZES['paper'].after})"
    paper = [
        "600 samples a device of MNIST and 250 of EMNIST (the rarest character has 278 in our files), the test set "
        "dealt to devices by their labels",
        "EMNIST: the by-class split (62 classes, of which ten are dealt), where the paper has the balanced one; in our "
        "files its official test set, cut into a part to train on and one to test on",
    ]
    return StudyPlan.at(scale, parts, notes, shrunk, paper)


def rounds_back(curve: Curve, tau: int) -> int | None:
    """Rounds from τ0 on until accuracy is back at that of round τ0 - 1; None if it never is."""
    return curve.rounds_to(float(curve.value_T[curve.round_T == tau - 1][0]), start=tau)


def counted(curves: Curves, name: str, tau: int, kind: str) -> dict[int, int | None]:
    return {seed: rounds_back(curve, tau) for seed, curve in curves.curves.get(variant(name, tau, kind), {}).items()}


def windows(scale: str) -> dict[int, int]:
    """The arrivals of Figure 5, and for how many rounds each is watched: until the next one."""
    size = SIZES[scale]
    ends = (*size.in_a_row[1:], size.in_a_row[-1] + size.after)
    return {tau: end - tau for tau, end in zip(size.in_a_row, ends, strict=True)}


def counted_in_a_row(curves: Curves, name: str, tau: int, kind: str, window: int) -> dict[int, int | None]:
    back = {seed: rounds_back(curve, tau) for seed, curve in curves.curves.get(in_a_row(name, kind), {}).items()}
    return {seed: rounds if rounds is None or rounds <= window else None for seed, rounds in back.items()}


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    size = SIZES[scale]
    for name, tau in product(size.data, size.taus):
        for kind, published in zip(KINDS, TABLE_4[name].get(tau, (None, None)), strict=True):
            back = censored(counted(curves, name, tau, kind), size.after)
            yield row(f"{name} τ0={tau}", f"rounds, {kind}", back, published)
    for name, (tau, window), kind in product(size.data, windows(scale).items(), KINDS):
        back = censored(counted_in_a_row(curves, name, tau, kind, window), window)
        yield row(f"{name} in a row, τ0={tau}", f"rounds, {kind}", back)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    size = SIZES[scale]
    first, *late = size.taus
    for name in size.data:
        rounds = {tau: [counted(curves, name, tau, kind) for kind in KINDS] for tau in size.taus}
        for tau in late:
            claim = f"{name}: fast-reboot needs fewer rounds than vanilla at τ0 = {tau}"
            fast, vanilla = rounds[tau]
            yield sooner(claim, fast, vanilla, size.after)
        claim = f"{name}: fast-reboot gains more rounds at τ0 = {late[-1]} than at {first}"
        latest, earliest = (
            difference(censored(vanilla, size.after), censored(fast, size.after))
            for fast, vanilla in (rounds[late[-1]], rounds[first])
        )
        yield better(claim, latest, earliest, "rounds")
        for tau, window in windows(scale).items():
            claim = f"{name}, three in a row: fast-reboot needs fewer rounds than vanilla at τ0 = {tau}"
            fast, vanilla = (counted_in_a_row(curves, name, tau, kind, window) for kind in KINDS)
            yield sooner(claim, fast, vanilla, window)


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 4 left: accuracy around the arrival; Figure 5: arrivals in a row."""
    size, charts = SIZES[scale], []
    for name in size.data:
        for tau in size.taus[-2:]:
            lines = {kind: variant(name, tau, kind) for kind in KINDS}
            charts.append(Chart(f"{name}, an arrival in round {tau}: accuracy", lines))
        when = ", ".join(map(str, size.in_a_row))
        lines = {kind: in_a_row(name, kind) for kind in KINDS}
        charts.append(Chart(f"{name}, arrivals in rounds {when}: accuracy", lines))
    return {"figures4and5.svg": charts}


STUDY = Study("arrivals", __doc__, "global_accuracy", plan, rows, claims, figures)
