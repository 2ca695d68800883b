"""MTFL, Table 2: seconds of a round on real devices, by what they are spent on.

Every run is a deployment on this machine (devices.py): a real SuperLink and a warm process a device, each with a
link of its own, shaped. FedAvg, MTFL (the paper's MT-FedAdam: BatchNorm at home, moments averaged, three times the
bytes) and independent devices. FedAvg's learning rate is chosen in one process, on seeds of its own.

A round is split along its slowest device, as in the paper: download (from when the server has handed its messages over
until training begins), training, upload, and the server's part. The claims were written before the first
deployment; classes, target and link speed were chosen after a look at the methods in one process, seed 0 among them.

CIFAR-10 is timed only, as in the paper: no target, and nothing is tuned. Its time is a sixth of the paper's; seconds of
a step and speed of the links follow from Table 2 alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import turnout.models as models
from turnout import Algorithm, Evaluate, Experiment, Run
from turnout.data import CIFAR10, Digits
from turnout.data.sizes import Equal
from turnout.deploy.settings import Flower
from turnout.experiment import DataSpec
from turnout.models import ModelSpec
from turnout.running.records.records import Records
from turnout.settings import InProcess
from turnout_papers.devices import HOW, Testbed
from turnout_papers.recipes import on_one_core
from turnout_papers.recipes.multitask import BATCH, LOCAL_TEST, methods, of_classes, sgd
from turnout_papers.studies.claims import NOT_RUN, Claim, above, better, same
from turnout_papers.studies.drawing import Series, line_chart, sheet
from turnout_papers.studies.published import TABLE_2_TESTBED
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

FEDAVG, MTFL, ALONE = METHODS = ("FedAvg", "MTFL", "Independent")  # on digits
ON_CIFAR = tuple(f"CIFAR-10 {method}" for method in METHODS)
PHASES = ("download", "training", "upload", "server")
TARGET = 0.9  # mean accuracy of clients' own models on their own test data
CLASSES = 4  # a client


@dataclass(frozen=True)
class TestbedSize:
    """How large the study is at one scale; `alone` rounds are enough for independent devices."""

    devices: int
    hidden: int
    rounds: int
    alone: int
    rates: tuple[float, ...]
    seeds: int
    bed: Testbed


SIZES = {
    "smoke": TestbedSize(2, 16, 4, 4, (0.1,), 1, Testbed(mbps=8.0, step_seconds=0.1)),
    "small": TestbedSize(4, 200, 12, 4, (0.03, 0.1, 0.3, 1.0), 3, Testbed(mbps=8.0, step_seconds=0.1)),
    "paper": TestbedSize(10, 200, 60, 20, (0.03, 0.1, 0.3, 1.0), 5, Testbed(mbps=4.0, step_seconds=0.5)),
}


@dataclass(frozen=True)
class TimedSize:
    """CIFAR-10, at paper scale only: `samples` a device, and FedAvg's `rate`."""

    devices: int
    samples: int
    rounds: int
    rate: float
    seeds: int
    bed: Testbed


MEGABITS = 1_205_898 * 32 / 1e6  # of the CNN's parameters, one way
TIMED = TimedSize(10, 200, 8, 0.1, 3, Testbed(mbps=43.0, step_seconds=1.55, every_round=False))


def three(data: DataSpec, model: ModelSpec, rounds: int, rate: float) -> list[Experiment]:
    """FedAvg, MTFL and independent devices in one world; `rate` is FedAvg's."""
    made = methods(data, model, share=1.0, rounds=rounds)
    return [made["MT-FedAdam"].but(algorithm=Algorithm(sgd(rate, 1))), made["MT-FedAdam"], made["Independent"]]


def experiments(scale: str, rate: float) -> dict[str, Experiment]:
    """The three methods on digits."""
    size = SIZES[scale]
    data = Digits(clients=size.devices, partition=of_classes(CLASSES), local_test=LOCAL_TEST)
    model = models.MLP(size.hidden, size.hidden, batch_norm=(1,))
    made = dict(zip(METHODS, three(data, model, size.rounds, rate), strict=True))
    return made | {ALONE: made[ALONE].but(rounds=size.alone)}


def timed() -> Part:
    """The three methods on CIFAR-10, on devices."""
    partition, sizes = of_classes(CLASSES), Equal(TIMED.samples)
    data = CIFAR10(clients=TIMED.devices, partition=partition, sizes=sizes, local_test=LOCAL_TEST)
    made = three(data, models.mtfl_cifar_cnn(), TIMED.rounds, TIMED.rate)
    variants = {name: on_devices(e, TIMED.devices) for name, e in zip(ON_CIFAR, made, strict=True)}
    return Part("CIFAR-10 devices", variants, TIMED.seeds, play=TIMED.bed.play)


def on_devices(experiment: Experiment, devices: int) -> Experiment:
    """The same on real devices; clients' own models are measured in the end."""
    compute = InProcess(device="cpu", threads=1, chunk=1)
    settings = Flower(
        clients=devices, start_with=devices, least=devices, server_data=True, round_seconds=300.0, compute=compute
    )
    return experiment.but(runtime=settings, evaluate=Evaluate(every=experiment.rounds, personal=True))


def plan(scale: str) -> StudyPlan:
    """The runs that FedAvg's rate on digits is chosen on (`deployed` gives those on devices), and those on CIFAR-10."""
    size = SIZES[scale]
    tuning = {tuned(rate): experiments(scale, rate)[FEDAVG] for rate in size.rates}
    bed = size.bed
    notes = [
        f"digits, {size.devices} devices with {CLASSES} classes each, all of them in every round, E = 1, batches of "
        f"20, two hidden layers of {size.hidden} with BatchNorm after the first (the paper's 2NN on Raspberry Pis)",
        f"links of {bed.mbps:g} Mbit/s each way, {bed.step_seconds:g} s a step: every device is a process in a network "
        "namespace of its own, whose cable `tc` shapes; where that is not allowed, the device waits as long",
        f"FedAvg's learning rate in {size.rates} is chosen in one process on two seeds from {TUNING_SEEDS} on",
        f"rounds and seconds to a mean personal accuracy of {100 * TARGET:g} %, or all {size.rounds} rounds where it "
        "is not reached; accuracy is that of the replay of each deployment, which must give the same model to the bit",
        "a round is split along its slowest device; download: until training begins, being picked up included; server: "
        "handing messages over, averaging; the last round is left out, as its evaluation would count",
    ]
    parts = [Part("tuning", on_one_core(tuning), 2, TUNING_SEEDS)]
    return StudyPlan([*parts, timed()], [*notes, *timed_notes()]) if scale == "paper" else StudyPlan(parts, notes)


def timed_notes() -> list[str]:
    bed, steps = TIMED.bed, TIMED.samples // BATCH
    return [
        f"CIFAR-10, timed only: {TIMED.devices} devices with {TIMED.samples} pictures of {CLASSES} classes each (the "
        f"paper does not say how many), all of them in every round, E = 1, batches of {BATCH}, the paper's CNN (1.2 M "
        f"parameters), {TIMED.rounds} rounds (the paper: 10); FedAvg's learning rate is {TIMED.rate:g}, not tuned",
        f"CIFAR-10, scaled: {steps} steps of {bed.step_seconds:g} s a round, a sixth of the 93 s that FedAvg's devices "
        f"train in Table 2 (86 % of 108), and links of {bed.mbps:g} Mbit/s, on which FedAvg's {MEGABITS:.1f} Mbit take "
        "a sixth of its 5.4 s of download; the server and the devices' handling of messages are this machine's, not "
        "scaled; who is handed a message first downloads while others are handed theirs, which counts as the server's",
    ]


def tuned(rate: float) -> str:
    return f"{FEDAVG} lr={rate:g}"


def chosen(scale: str, curves: Curves) -> float | None:
    """The rate of fewest rounds to the target on the tuning seeds; of equal ones the highest accuracy."""

    def score(curve: Curve) -> float:
        there = curve.round_T[curve.value_T >= TARGET]
        return -float(there[0] if len(there) else SIZES[scale].rounds) + 0.5 * float(curve.value_T[-1])

    return choose(curves, {tuned(rate): rate for rate in SIZES[scale].rates}, score, SIZES[scale].seeds)


def deployed(scale: str, curves: Curves) -> list[Part]:
    size = SIZES[scale]
    rate = chosen(scale, curves)
    if rate is None or not curves.has(*(tuned(one) for one in size.rates)):
        return []
    made = experiments(scale, rate)
    variants = {name: on_devices(experiment, size.devices) for name, experiment in made.items()}
    return [Part("devices", variants, size.seeds, play=size.bed.play)]


def look(run: Run) -> Look:
    """Of a deployment: the seconds of each round's phases, and clients' accuracy after it, by the replay."""
    if not isinstance(run.experiment.runtime, Flower):
        return {}
    with run.records() as records:
        clients, rounds, own = records.clients(), records.rounds(), records.curve("personal_accuracy")[1]
    with Records.read(run.folder.parent / "replay" / "records.sqlite") as records:
        accuracy_T = records.curve("personal_accuracy")[1]
    times = np.array([_phases(clients, rounds, t) for t in range(len(rounds["round"]))])
    how = (run.folder.parent / HOW).read_text(encoding="utf-8")
    return {phase: times[:, i] for i, phase in enumerate(PHASES)} | {
        "accuracy": accuracy_T[-len(times) :], "last": own[-1:], "shaped": np.array([how == "tc"], dtype=np.float64),
        "bytes": (rounds["bytes_up"] + rounds["bytes_down"]).astype(np.float64),
    }  # fmt: skip


def _phases(clients: dict[str, np.ndarray], rounds: dict[str, np.ndarray], t: int) -> list[float]:
    """The seconds of a round along its slowest device; the server's part of the last one has the evaluation: NaN."""
    mine = clients["round"] == t
    i = np.flatnonzero(mine)[np.nanargmax(clients["reply_seconds"][mine])]
    after = np.flatnonzero((clients["round"] == t + 1) & (clients["client"] == clients["client"][i]))
    whole, train = (float(clients[f"{name}_seconds"][i]) for name in ("reply", "training"))
    up = float(clients["upload_seconds"][after[0]]) if len(after) else math.nan  # reported with the next reply
    last = t == int(rounds["round"].max())
    server = math.nan if last else float(rounds["seconds"][rounds["round"] == t][0]) - whole
    return [whole - train - up, train, up, server]


def usual(phase: str) -> Callable[[Look], float]:
    """Seconds of a phase: the median over rounds, without the first, in which devices are still settling."""
    return lambda seen: float(np.nanmedian(seen[phase][1:]))


def a_round(seen: Look) -> float:
    return sum(usual(phase)(seen) for phase in PHASES)


def percent(phase: str) -> Callable[[Look], float]:
    """The share of a round that is spent on a phase."""
    return lambda seen: 100 * usual(phase)(seen) / a_round(seen)


def rounds_to(seen: Look) -> float:
    """Rounds to the target; all of them where it is not reached."""
    there = np.flatnonzero(seen["accuracy"] >= TARGET)
    return float(there[0] + 1) if len(there) else float(len(seen["accuracy"]))


def seconds_to(seen: Look) -> float:
    return rounds_to(seen) * a_round(seen)


def _end(name: str) -> Callable[[Look], float]:
    """The last of some accuracies, in points."""
    return lambda seen: 100 * float(seen[name][-1])


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for method in (*METHODS, *ON_CIFAR) if scale == "paper" else METHODS:
        published = TABLE_2_TESTBED[method]
        yield row(method, "s a round", curves.seen(method, a_round), published["round"])
        for phase in PHASES:
            yield row(method, f"{phase}, %", curves.seen(method, percent(phase)), published.get(phase))
        yield row(method, "MB a round", curves.seen(method, lambda one: float(one["bytes"].mean()) / 1e6))
    for method in METHODS:
        yield row(method, "rounds to target", curves.seen(method, rounds_to))
        yield row(method, "s to target", curves.seen(method, seconds_to))
        yield row(method, "last accuracy, %", curves.seen(method, _end("accuracy")))
    shaped = [
        bool(one["shaped"][0]) for by_seed in curves.looks.values() for one in by_seed.values() if "shaped" in one
    ]
    how = "tc" if shaped and all(shaped) else "the devices themselves" if shaped else None
    yield ResultRow("all", "links shaped by", how, None, 0, None)
    yield ResultRow("all", "FedAvg's learning rate", chosen(scale, curves) or NOT_RUN, None, 0, None)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    def compare(claim: str, more: str, less: str, number: Callable[[Look], float], unit: str = "s") -> Claim:
        return better(claim, curves.seen(more, number), curves.seen(less, number), unit)

    yield compare("a round of MTFL takes longer than one of FedAvg", MTFL, FEDAVG, a_round)
    yield compare("a round of FedAvg takes longer than one of independent devices", FEDAVG, ALONE, a_round)
    claim = f"MTFL reaches {100 * TARGET:g} % personal accuracy in fewer rounds than FedAvg"
    yield compare(claim, FEDAVG, MTFL, rounds_to, "rounds")
    claim = "MTFL's extra seconds a round are outweighed: it reaches that accuracy in less time than FedAvg"
    yield compare(claim, FEDAVG, MTFL, seconds_to)
    ends = {"devices": curves.seen(MTFL, _end("last")), "replay": curves.seen(MTFL, _end("accuracy"))}
    yield same("what devices measure in the end is what the replay in one process measures", ends, 1e-6, "points")
    if scale == "paper":
        fedavg, mtfl, alone = ON_CIFAR
        yield compare("CIFAR-10: a round of MTFL takes longer than one of FedAvg", mtfl, fedavg, a_round)
        claim = "CIFAR-10: a round of FedAvg takes longer than one of independent devices"
        yield compare(claim, fedavg, alone, a_round)
        for method in (fedavg, mtfl):
            over = {seed: share - 50 for seed, share in curves.seen(method, percent("training")).items()}
            yield above(f"{method}: more than half of a round is local training", over, unit="points over 50 %")


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Accuracy against the seconds since the beginning."""
    if not set(METHODS) <= curves.looks.keys():
        return {}
    lines = []
    for colour, method in enumerate(METHODS):
        seen = curves.looks[method].values()
        accuracy_T = np.mean([one["accuracy"] for one in seen], 0)
        second_T = np.mean([a_round(one) for one in seen]) * np.arange(1, len(accuracy_T) + 1)
        lines.append(Series(method, second_T, accuracy_T, colour))
    return {"testbed.svg": sheet([line_chart(lines, "Personal accuracy", "seconds", "percent")])}


STUDY = Study("testbed", __doc__, "personal_accuracy", plan, rows, claims, look=look, then=deployed, pictures=pictures)
