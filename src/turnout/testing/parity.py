"""Whether experiments have the same results wherever their client work runs: `turnout parity`.

A `Comparison` plays a few rounds of an experiment in one process, and then on other runtimes (`RUNTIMES`). Who was
asked and answered, what counted and what happened must be the same; of the server's state, of the clients' records and
of what was measured, the largest difference is found, relative to the largest number of the tensor it is in.

Flower's simulation is compared the other way round (simulation.py): what was seen there is played in one process.

A runtime that only moves work gives the same to the bit, with the native engine, and otherwise one client at a time in
double precision. Another engine rounds otherwise: it is compared in double precision, at a tenth of the learning rate
(at the full one some recipes are chaotic: rounding grows to a third of the loss in four rounds), and only in what is
computed and measured, not in how it was packed: a ternary message may be a byte longer where a value lies at its
threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from turnout.experiment import Experiment
from turnout.recipes import cook, recipes
from turnout.round_log import RoundRecord
from turnout.running.tracks.prepare import prepare
from turnout.runtimes.settings import InProcess, Processes, Ray, RuntimeSpec
from turnout.types import Tensors, flatten
from turnout.world.events import Join, Leave, RandomEvents

ROUNDS = 4
ENGINE_ROUNDS = 2
RECORDED = 1e-6  # what numbers may differ by that are only written down, such as norms summed worker by worker
CLOSE = 1e-7  # what another engine may differ by: Adam divides by the roots of its moments
OTHER_DATA = ("mnist", "emnist", "cifar", "animals")  # recipes whose data is not in the package
ONE_PER_PART = (
    "participation/A", "participation/C", "baselines/FedNova", "baselines/SCAFFOLD", "baselines/VRL-SGD",
    "baselines/MimeLite", "baselines/APFL", "baselines/FedAMP", "compression/8 bits", "compression/ternary",
    "elastic/EFL", "multitask/MT-FedAdam", "friends/Friends", "friends/Stale", "arrival/fast-reboot",
    "departure/include", "together/all", "labels/average", "deadlines/ternary", "deadlines/FedBuff",
)  # fmt: skip

LOOKED_AT = {  # what else is measured in some of them: what the missing would have sent, each client's own test data
    "friends/Friends": {"evaluate.substitution": True, "evaluate.per_client": True},
}


@dataclass(frozen=True)
class Elsewhere:
    """Another runtime to compare with; `settings` makes it from how the one process computes.

    moves    whether it only moves the work, so that results are equal to the bit
    needs    the library without which it cannot run
    at_once  compares several experiments, by name, where starting it takes long and one process plays what it saw
    """

    settings: Callable[[InProcess], RuntimeSpec]
    moves: bool = True
    needs: str | None = None
    at_once: Callable[[Mapping[str, Experiment]], Mapping[str, Difference | str]] | None = None


def flower_simulation(experiments: Mapping[str, Experiment]) -> Mapping[str, Difference | str]:
    from turnout.testing.simulation import simulated

    return simulated(experiments)


RUNTIMES = {
    "plain loop": Elsewhere(lambda here: replace(here, engine="loop"), moves=False),
    "odd chunks": Elsewhere(lambda here: replace(here, chunk=3, threads=2), moves=False),
    "two processes": Elsewhere(lambda here: Processes(2, here)),
    "Ray": Elsewhere(lambda here: Ray(workers=2, compute=here), needs="ray"),
    "Flower's simulation": Elsewhere(lambda here: here, needs="flwr", at_once=flower_simulation),
}


@dataclass(frozen=True)
class Played:
    """A few rounds of an experiment: what is left, what was recorded, what was measured."""

    state: Tensors
    records: list[RoundRecord]
    values: list[Mapping[str, float]]


@dataclass(frozen=True)
class Difference:
    """The largest relative difference, and where it is; 0 where everything is equal to the bit."""

    largest: float
    where: str = ""

    def __str__(self) -> str:
        return f"{self.largest:.0e} ({self.where})" if self.largest else "equal"


class Comparison:
    """An experiment in one process, played when it is first compared with."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        lower = experiment.algorithm.local.optimizer.lr / 10
        self.slower = shrunk(experiment, ENGINE_ROUNDS).but(**{"algorithm.local.optimizer.lr": lower})

    @cached_property
    def _moving(self) -> tuple[InProcess, Played]:
        here = one_process(self.experiment)
        return here, played(self.experiment, here)

    @cached_property
    def _computing(self) -> tuple[InProcess, Played]:
        here = InProcess(device="cpu", threads=1, precision="float64")
        return here, played(self.slower, here)

    def with_(self, elsewhere: Elsewhere) -> Difference:
        """What differs there; an AssertionError where the rounds are not even the same ones."""
        here, one = self._moving if elsewhere.moves else self._computing
        experiment = self.experiment if elsewhere.moves else self.slower
        return difference(one, played(experiment, elsewhere.settings(here)), elsewhere.moves)


def acceptable(found: Difference, elsewhere: Elsewhere) -> bool:
    """Whether it is what a runtime of that sort promises."""
    return found.largest <= (0.0 if elsewhere.moves else CLOSE)


def small_recipes() -> dict[str, Experiment]:
    """Every recipe that needs no other data, with few rounds."""
    found: dict[str, Experiment] = {}
    for recipe in recipes():
        if not recipe.startswith(OTHER_DATA):
            found |= {f"{recipe}/{variant}": shrunk(e) for variant, e in cook(recipe).items()}
    return found | {name: found[name].but(**more) for name, more in LOOKED_AT.items() if name in found}


def shrunk(experiment: Experiment, rounds: int = ROUNDS) -> Experiment:
    """The same with few rounds, in which whoever joins or leaves does so."""
    kept = [event for event in experiment.world.events if not isinstance(event, RandomEvents)]
    moved = [replace(e, round=min(e.round, rounds // 2)) if isinstance(e, Join | Leave) else e for e in kept]
    return experiment.but(rounds=rounds, seed=3, **{"world.events": tuple(moved)})


def one_process(experiment: Experiment) -> InProcess:
    """How one process computes each client's numbers independently of its company."""
    here = InProcess(device="cpu", threads=1)
    native = prepare(experiment.but(runtime=here)).about()["engine"] == "native"
    return here if native else replace(here, precision="float64", chunk=1)


def played(experiment: Experiment, runtime: RuntimeSpec) -> Played:
    track = prepare(experiment.but(runtime=runtime))
    try:
        state, records, values = track.begin(), [], []
        for t in range(experiment.rounds):
            state, record = track.round(state, t)
            records.append(record)
            values.append(track.evaluate(state, t).values)
        return Played(flatten(track.pack(state))[0], records, values)
    finally:
        track.close()


def difference(one: Played, other: Played, exact: bool = True) -> Difference:
    """Of two plays. Where it need not be exact, how things were packed is left out."""
    names = ("asked", "answered", "counted", "skipped", "events", *(("bytes_up", "bytes_down") if exact else ()))
    for a, b in zip(one.records, other.records, strict=True):
        for name in names:
            mine, theirs = getattr(a, name), getattr(b, name)
            assert mine == theirs, f"round {a.round}: {name} is {mine} in one process and {theirs} elsewhere"
    found = [of_tensors(one.state, other.state, "state", exact)]
    for a, b in zip(one.records, other.records, strict=True):
        found.append(of_tensors(a.clients, b.clients, f"round {a.round}", exact))
        beside = of_tensors(_numbers(a.extra), _numbers(b.extra), f"round {a.round}", exact)
        found.append(beside if beside.largest > RECORDED else Difference(0.0))
    for t, (mine, theirs) in enumerate(zip(one.values, other.values, strict=True)):
        found.append(of_tensors(_numbers(mine), _numbers(theirs), f"measured after round {t}", exact))
    return max(found, key=lambda difference: difference.largest)


def of_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor], where: str, exact: bool) -> Difference:
    assert one.keys() == other.keys(), f"{where}: {sorted(one.keys() ^ other.keys())} is only on one side"
    names = [name for name, v in one.items() if exact or (v.is_floating_point() and not name.startswith("bytes"))]
    names = [name for name in names if not name.endswith("seconds")]
    found = [Difference(_relative(one[name], other[name]), f"{where}, {name}") for name in names]
    return max(found, key=lambda difference: difference.largest, default=Difference(0.0))


def _numbers(values: Mapping[str, float | str]) -> Tensors:
    """Numbers by name; words are of what happened, which is compared already."""
    numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def _relative(a: Tensor, b: Tensor) -> float:
    """The largest difference over the largest number; infinite where shapes or what is no number differ.

    >>> _relative(torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0])), _relative(torch.zeros(1), torch.zeros(2))
    (0.25, inf)
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    a, b = a.double(), b.double()
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    a, b = a.nan_to_num(), b.nan_to_num()
    if not a.numel() or torch.equal(a, b):
        return 0.0
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-300))
