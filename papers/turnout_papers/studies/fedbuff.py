"""Nguyen et al. (2022), FedBuff: client updates and time to a target, against synchronous and asynchronous training.

1,000 clients with two shards of MNIST each, 100 of them at work at any time, one epoch in batches of 32, durations
half-normal. FedAvg waits for its 100 clients; with over-selection it closes a round with the first 77 of them. FedBuff
steps after K = 10 replies, asynchronous training after each. Client and server rates are chosen for each on a seed of
its own, and judged on others. The paper's tasks are CelebA, Sentiment140 with its authors and CIFAR-10, 1,000 clients
at work; its abstract says 3.3 times fewer updates than synchronous and up to 2.5 times fewer than asynchronous ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import turnout.models as models
from turnout import Run
from turnout.data import MNIST, Digits
from turnout.data.partition import Shards
from turnout.experiment import Algorithm, DataSpec, Evaluate, Experiment, Stop, World
from turnout.parts.closing import Buffered, Closing, FirstReplies, WaitForAll
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.selection import Count
from turnout.parts.server import ServerSGD
from turnout.running.charts.units import Unit
from turnout.world.devices.device_draw import DeviceDraw, Devices, normal
from turnout_papers.recipes import ONE_CORE
from turnout_papers.studies.claims import Claim, sooner
from turnout_papers.studies.drawing import Series, line_chart, sheet
from turnout_papers.studies.published import FEDBUFF_SPEED_UPS
from turnout_papers.studies.study import (
    TUNING_SEEDS,
    Curve,
    Curves,
    Look,
    Part,
    ResultRow,
    Study,
    StudyPlan,
    choose,
    row,
)

AVG, OVER, BUFF, EACH = METHODS = ("FedAvg", "FedAvg over-selection", "FedBuff", "asynchronous")
CLIENT = (0.03, 0.1, 0.3)
SERVER = {AVG: (0.3, 1.0, 3.0), OVER: (0.3, 1.0, 3.0), BUFF: (0.1, 0.3, 1.0), EACH: (0.01, 0.03, 0.1)}
AT = 40  # places at which pictures read the curves
FAST = 1e12  # bytes a second: transfers take no time


@dataclass(frozen=True)
class FedBuffSize:
    """How large the study is: `at_work` clients with `samples` each at any time, `updates` client updates at most."""

    clients: int
    at_work: int
    samples: int
    buffer: int
    target: float
    updates: int
    seeds: int

    def per_step(self, method: str) -> int:
        """Client updates in a step of the server."""
        return {AVG: self.at_work, OVER: round(self.at_work / 1.3), BUFF: self.buffer, EACH: 1}[method]


SIZES = {
    "smoke": FedBuffSize(40, 10, 35, 2, target=0.8, updates=40, seeds=2),
    "small": FedBuffSize(40, 10, 35, 2, target=0.8, updates=2000, seeds=5),
    "paper": FedBuffSize(1000, 100, 60, 10, target=0.9, updates=10_000, seeds=5),
}


@dataclass(frozen=True)
class HalfNormal(Devices):
    """Devices whose whole work takes |z| seconds, z standard normal, drawn anew every time; links take no time.

    samples   of a client's whole work

    >>> draw = HalfNormal(60).draw(torch.arange(10_000), t=0, seed=0)
    >>> round(float((60 / draw.compute_C).mean()), 1)  # √(2 / π)
    0.8
    """

    samples: int = 60

    @property
    def tiers(self) -> tuple[str, ...]:
        return ("device",)

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        seconds_C = normal(seed, "half-normal", t, ids=client_C).abs().clamp(min=1e-3)
        fast_C = torch.full_like(seconds_C, FAST)
        none_C = torch.zeros_like(seconds_C)
        return DeviceDraw(self.samples / seconds_C, fast_C, fast_C, none_C, torch.zeros_like(client_C), True)


@dataclass(frozen=True)
class Rates:
    """The learning rates of clients and server."""

    client: float
    server: float


def experiment(method: str, rates: Rates, scale: str) -> Experiment:
    """One run; it stops at the target, and is measured after every `at_work` client updates."""
    size = SIZES[scale]
    kind = MNIST if scale == "paper" else Digits
    data: DataSpec = kind(clients=size.clients, partition=Shards(2), test_share=0.0)
    closings: dict[str, Closing] = {
        AVG: WaitForAll(),
        OVER: FirstReplies(count=size.per_step(OVER)),
        BUFF: Buffered(size=size.buffer, concurrency=size.at_work),
        EACH: Buffered(size=1, concurrency=size.at_work),
    }
    per_step = size.per_step(method)
    return Experiment(
        world=World(data, devices=HalfNormal(size.samples)),
        model=models.MLP(50 if scale == "paper" else 32),
        algorithm=Algorithm(
            Local(SGD(rates.client), epochs=1, batch_size=32),
            selection=Count(size.at_work),
            server=ServerSGD(rates.server),
            closing=closings[method],
            nonfinite="absent",
        ),
        rounds=size.updates // per_step,
        evaluate=Evaluate(every=max(1, size.at_work // per_step)),
        stop=Stop(target=size.target),
        runtime=ONE_CORE,
    )


def options(method: str, scale: str) -> dict[str, Rates]:
    """The rates to choose from, by the name of their run."""
    client, server = (CLIENT[1:2], SERVER[method][1:]) if scale == "smoke" else (CLIENT, SERVER[method])
    every = [Rates(a, b) for a in client for b in server]
    return {f"{method} lr={rates.client:g} server={rates.server:g}": rates for rates in every}


def plan(scale: str) -> StudyPlan:
    """The runs that rates are chosen on; `judged` gives those that are counted."""
    size = SIZES[scale]
    variants = {n: experiment(m, rates, scale) for m in METHODS for n, rates in options(m, scale).items()}
    notes = [
        f"target {100 * size.target:g} %, measured after every {size.at_work} client updates, {size.updates} at most; "
        f"with over-selection {size.at_work} are asked and {size.per_step(OVER)} counted",
        f"rates chosen on seed {TUNING_SEEDS} and judged on {size.seeds} others: clients' in {CLIENT}, the server's in "
        f"{SERVER[AVG]} (synchronous), {SERVER[BUFF]} (FedBuff), {SERVER[EACH]} (asynchronous), without momentum",
        "staleness discounts a reply by 1 / √(1 + steps), for FedBuff and asynchronous training alike",
        "seconds are simulated: the durations of whole work are |z|, z standard normal, so their mean is 0.8",
    ]
    shrunk = f"8x8 digits, {size.clients} clients, {size.at_work} at work, K = {size.buffer}"
    return StudyPlan.at(scale, [Part("tuning", variants, 1, TUNING_SEEDS)], notes, shrunk)


def chosen(scale: str, method: str, curves: Curves) -> Rates | None:
    """The rates of fewest updates on the tuning seed; of equal ones those of the highest accuracy."""
    size = SIZES[scale]

    def score(curve: Curve) -> float:
        reached = curve.rounds_to(size.target)
        most = size.updates // size.per_step(method)
        return -float(reached or most) + 0.5 * float(curve.value_T[-1])

    return choose(curves, options(method, scale), score, size.seeds)


def judged(scale: str, curves: Curves) -> list[Part]:
    variants = {}
    for method in METHODS:
        if (rates := chosen(scale, method, curves)) is not None:
            variants[method] = experiment(method, rates, scale)
    return [Part("judged", variants, SIZES[scale].seeds)] if variants else []


def look(run: Run) -> Look:
    """The simulated seconds after every round."""
    with run.records() as records:
        return {"seconds": records.rounds()["simulated_time"].astype(np.float64)}


def updates(scale: str, curves: Curves, method: str) -> dict[int, int | None]:
    """Client updates until the target is reached, by seed."""
    size = SIZES[scale]
    rounds = {seed: curve.rounds_to(size.target) for seed, curve in curves.curves.get(method, {}).items()}
    return {seed: None if r is None else r * size.per_step(method) for seed, r in rounds.items()}


def seconds(scale: str, curves: Curves, method: str) -> dict[int, float | None]:
    """Simulated seconds until the target is reached, by seed."""
    per_step, found = SIZES[scale].per_step(method), updates(scale, curves, method)
    looks = curves.looks.get(method, {})
    return {s: None if u is None else float(looks[s]["seconds"][u // per_step - 1]) for s, u in found.items()}


def ratio(ours: dict[int, float | None], theirs: dict[int, float | None]) -> dict[int, float]:
    """Theirs over ours, for the seeds in which both got there."""
    both = {seed: (theirs[seed], value) for seed, value in ours.items() if seed in theirs}
    return {seed: a / b for seed, (a, b) in both.items() if a is not None and b is not None}


def known(found: dict[int, float | None]) -> dict[int, float]:
    return {seed: value for seed, value in found.items() if value is not None}


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    spent = {m: {s: None if u is None else float(u) for s, u in updates(scale, curves, m).items()} for m in METHODS}
    took = {method: seconds(scale, curves, method) for method in METHODS}
    for method in METHODS:
        yield row(method, "client updates", known(spent[method]))
        yield row(method, "simulated seconds", known(took[method]))
        share = {s: float(u is not None) for s, u in spent[method].items()}
        yield row(method, "share of seeds that get there", share)
        if (rates := chosen(scale, method, curves)) is not None:
            yield ResultRow(method, "rates of clients and server", f"{rates.client:g}, {rates.server:g}", None, 0, None)
        if method != BUFF:
            yield row(
                method, "updates over FedBuff's", ratio(spent[BUFF], spent[method]), FEDBUFF_SPEED_UPS.get(method)
            )
            yield row(method, "seconds over FedBuff's", ratio(took[BUFF], took[method]))


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    most = SIZES[scale].updates
    spent, took = ({m: of(scale, curves, m) for m in METHODS} for of in (updates, seconds))
    for method in (AVG, OVER, EACH):
        yield sooner(f"FedBuff gets there with fewer client updates than {method}", spent[BUFF], spent[method], most)
        words = f"FedBuff gets there in less simulated time than {method}"
        yield sooner(words, took[BUFF], took[method], most)  # a second for each update is longer than any run takes


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Accuracy against client updates and against simulated time: means over seeds until the first gets there."""
    drawn = []
    axes: tuple[tuple[str, Unit], ...] = (("client updates", "count"), ("simulated seconds", "seconds"))
    for title, unit in axes:
        lines = []
        for colour, method in enumerate(m for m in METHODS if curves.has(m)):
            per_step, own = SIZES[scale].per_step(method), []
            for seed, curve in curves.finite(method).items():
                at_T = curve.round_T + 1
                time_T = np.concatenate([[0.0], curves.looks[method][seed]["seconds"]])
                own.append((at_T * per_step if unit == "count" else time_T[at_T], curve.value_T))
            x = np.linspace(0.0, min(float(x_T[-1]) for x_T, _ in own), AT)
            value = [value_T[np.searchsorted(x_T, x, side="right") - 1] for x_T, value_T in own]
            mean, deviation = np.mean(value, 0), np.std(value, 0, ddof=1) if len(value) > 1 else np.zeros(AT)
            lines.append(Series(method, x, mean, colour, (mean - deviation).clip(0), (mean + deviation).clip(max=1)))
        if lines:
            drawn.append(line_chart(lines, f"accuracy by {title}", title, "percent", unit))
    return {"fedbuff.svg": sheet(drawn)} if drawn else {}


STUDY = Study(
    "fedbuff", __doc__, "global_accuracy", plan, rows, claims, look=look, then=judged, pictures=pictures, looks=(5,)
)
