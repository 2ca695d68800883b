"""No paper: deadlines, compression, partial work and FedBuff in three fleets, at equal simulated time.

Which clients have replied when a round is closed, and what that does to a method. Three fleets (fast and even; laptops,
phones and Raspberry Pis; thin uplinks with heavy tails), a deadline at the median of what complete work with whole
messages takes, and methods that differ in what they send and in whether unfinished work counts. A run ends when its
simulated time is spent, so final numbers are at equal time.

The claims were written before the first run: compression raises turnout where links are thin; scheme C helps tiers that
never finish; a deadline at the median loses the slow tier's labels unless partial work counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from turnout import Experiment, Run
from turnout_papers.recipes import clock
from turnout_papers.studies.claims import Claim, better, within
from turnout_papers.studies.drawing import Series, line_chart, sheet
from turnout_papers.studies.study import Curves, Look, Part, ResultRow, Study, StudyPlan, row

MARGIN = 2.0  # points by which "no worse" may miss
SHOWN = (clock.WAIT, clock.FEDAVG, clock.C, clock.TERNARY, clock.FEDBUFF)
EPOCHS, BATCH = 5, 10
AT = 40  # places in time at which pictures read the curves


@dataclass(frozen=True)
class DeadlineSize:
    """How large the study is at one scale; `deadlines`: how many of them a run of each model may last."""

    deadlines: Mapping[str, int]
    fleets: tuple[str, ...]
    clients: int
    seeds: int


SIZES = {
    "smoke": DeadlineSize({"20 k": 3}, (clock.TIERS,), 10, seeds=2),
    "small": DeadlineSize({"20 k": 40}, clock.FLEETS, 50, seeds=5),
    "paper": DeadlineSize({"20 k": 100, "1.6 M": 40}, clock.FLEETS, 50, seeds=5),
}


def variant(fleet: str, load: str, method: str) -> str:
    return f"{fleet}, {load}: {method}"


def cases(scale: str) -> list[tuple[str, str]]:
    return [(fleet, load) for load in SIZES[scale].deadlines for fleet in SIZES[scale].fleets]


def plan(scale: str) -> StudyPlan:
    size, variants, notes = SIZES[scale], dict[str, Experiment](), list[str]()
    for fleet, load in cases(scale):
        last = size.deadlines[load]
        found = clock.timed(fleet, clock.LOADS[load], size.clients, last, EPOCHS, BATCH)
        variants |= {variant(fleet, load, method): experiment for method, experiment in found.items()}
        seconds = clock.median_seconds(fleet, clock.LOADS[load], size.clients, EPOCHS, BATCH)
        notes.append(f"{fleet}, {load}: the deadline is {seconds:g} s, and a run ends after {last} of them")
    notes += [
        "FedAvg, ternary, 8 bit and friends use whole replies that are in time; B and C also what was finished by "
        f"then; wait has no deadline; FedBuff steps after {size.clients // 5} replies, with {size.clients} at work",
        "devices: turnout_papers.recipes.clock.fleet; a small network reaches a twentieth of what a large one does",
        "clients are in five clusters of two classes; in the fleet of tiers the last cluster has the Raspberry Pis",
    ]
    return StudyPlan.at(scale, [Part("fleets", variants, size.seeds)], notes, "the model of 20 k parameters only")


def look(run: Run) -> Look:
    """By tier: the share of its clients asked that replied, and the accuracy of the model on their test data."""
    with run.records() as records:
        clients, rounds = records.clients(), records.rounds()
        measured, value = records.client_evaluation("client_accuracy")
        time_T, accuracy_T = records.curve("global_accuracy")
    # A run whose time ended before its first round did has no rows of clients, and no tiers.
    tier_N, there_N = np.asarray(clients.get("tier", ())).astype(int), clients["work"] > 0
    tier_of = dict(zip(clients["client"].tolist(), tier_N.tolist(), strict=True))
    tiers = range(max(tier_of.values(), default=0) + 1)
    own_C = np.array([tier_of.get(client, -1) for client in measured.tolist()])
    busy = float(np.nansum(rounds["device_seconds"]))
    clock_T = np.concatenate([[0.0], rounds["simulated_time"].astype(np.float64)])
    return {
        "turnout": np.array([_mean(there_N)]),
        "turnout by tier": np.array([_mean(there_N[tier_N == tier]) for tier in tiers]),
        "accuracy by tier": np.array([_mean(value[own_C == tier]) for tier in tiers]),
        "rounds": np.array([float(len(rounds["round"]))]),
        "wasted": np.array([float(np.nansum(rounds["wasted_device_seconds"])) / max(busy, 1e-9)]),
        "time": clock_T[time_T + 1],
        "accuracy": accuracy_T,
    }


def _mean(value: NDArray[np.generic]) -> float:
    return float(value.astype(np.float64).mean()) if len(value) else float("nan")


def seen(curves: Curves, name: str, key: str, place: int = 0, factor: float = 100.0) -> dict[int, float]:
    """One of the numbers that `look` reads: in percent, of the slowest tier at place -1."""
    return curves.seen(name, lambda look: factor * float(look[key][place]))


def final(curves: Curves, name: str) -> dict[int, float]:
    """In points: accuracy when the time was spent."""
    return seen(curves, name, "accuracy", -1)


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for (fleet, load), method in product(cases(scale), clock.METHODS):
        name = variant(fleet, load, method)
        yield row(name, "accuracy", final(curves, name))
        yield row(name, "accuracy of the slowest tier", seen(curves, name, "accuracy by tier", -1))
        yield row(name, "rounds", seen(curves, name, "rounds", factor=1.0))
        yield row(name, "turnout, %", seen(curves, name, "turnout"))
        yield row(name, "turnout of the slowest tier, %", seen(curves, name, "turnout by tier", -1))
        yield row(name, "device time wasted, %", seen(curves, name, "wasted"))


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for fleet, load in cases(scale):
        where, names = f"{fleet}, {load}", {method: variant(fleet, load, method) for method in clock.METHODS}
        ends = {method: final(curves, name) for method, name in names.items()}
        slow = {method: seen(curves, name, "accuracy by tier", -1) for method, name in names.items()}
        turnout = {method: seen(curves, name, "turnout") for method, name in names.items()}
        if fleet == clock.EVEN:
            words = f"{where}: where devices are even, B and C are within {MARGIN:g} points of one another"
            yield within(words, ends[clock.C], ends[clock.B], MARGIN, "points")
        elif fleet == clock.TIERS:
            lost = "a deadline at the median loses the slow tier's labels: FedAvg is below waiting for that tier"
            yield better(f"{where}: {lost}", slow[clock.WAIT], slow[clock.FEDAVG], "points")
            kept = f"unless partial work counts: C is no worse for that tier than waiting, by {MARGIN:g} points"
            yield better(f"{where}: {kept}", slow[clock.C], slow[clock.WAIT], "points", MARGIN)
            helps = "scheme C helps the tier that never finishes: above FedAvg there"
            yield better(f"{where}: {helps}", slow[clock.C], slow[clock.FEDAVG], "points")
            yield better(f"{where}: and above scheme B there", slow[clock.C], slow[clock.B], "points")
            yield better(
                f"{where}: FedBuff is above waiting at equal time", ends[clock.FEDBUFF], ends[clock.WAIT], "points"
            )
        else:
            for method in (clock.TERNARY, clock.BITS):
                words = f"{where}: {method} messages raise turnout"
                yield better(words, turnout[method], turnout[clock.FEDAVG], "points")
            words = f"{where}: ternary messages are above whole ones at equal time"
            yield better(words, ends[clock.TERNARY], ends[clock.FEDAVG], "points")


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Accuracy against simulated time in each fleet: means over seeds of what was last measured by then."""
    drawn = []
    for fleet, load in cases(scale):
        names = {method: variant(fleet, load, method) for method in SHOWN}
        if not curves.has(*names.values()):
            continue
        lines = []
        for colour, (method, name) in enumerate(names.items()):
            looks = list(curves.looks[name].values())
            x = np.linspace(0.0, min(float(look["time"][-1]) for look in looks), AT)
            value = [look["accuracy"][np.searchsorted(look["time"], x, side="right") - 1] for look in looks]
            mean, deviation = np.mean(value, 0), np.std(value, 0, ddof=1) if len(value) > 1 else np.zeros(AT)
            lines.append(Series(method, x, mean, colour, (mean - deviation).clip(0), (mean + deviation).clip(max=1)))
        drawn.append(line_chart(lines, f"{fleet}, {load}: accuracy", "simulated seconds", "percent", "seconds"))
    return {"deadline.svg": sheet(drawn)} if drawn else {}


STUDY = Study("deadline", __doc__, "global_accuracy", plan, rows, claims, look=look, pictures=pictures)
