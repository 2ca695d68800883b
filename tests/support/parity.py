"""Whether experiments have the same results wherever their client work runs.

A `RuntimeComparison` plays a few rounds of an experiment in one process and on other runtimes (`RUNTIMES`). Turnout,
events and bytes must be equal; of the server's state, the clients' records and the measurements the largest difference
is taken, relative to the largest number of its tensor.

A runtime that only moves work gives the same bits, with the native engine or else one client at a time in double
precision. Another engine rounds differently: it is compared in double precision, at a tenth of the learning rate (at
the full one some recipes are chaotic: rounding grows to a third of the loss in four rounds), and without bytes, because
a ternary message may be a byte longer where a value lies at its threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.experiment import Experiment
from turnout.round_record import RoundRecord
from turnout.running.tracks.prepare import prepare
from turnout.settings import InProcess, Processes, Ray, RuntimeSpec
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

MEASURED_TOO = {"friends/Friends": {"evaluate.substitution": True, "evaluate.per_client": True}}


@dataclass(frozen=True)
class Elsewhere:
    """Another runtime to compare with.

    settings  makes its settings from those of the one process
    moves     whether it only moves the work, so that results are equal to the bit
    """

    settings: Callable[[InProcess], RuntimeSpec]
    moves: bool = True


RUNTIMES = {
    "plain loop": Elsewhere(lambda here: replace(here, engine="loop"), moves=False),
    "odd chunks": Elsewhere(lambda here: replace(here, chunk=3, threads=2), moves=False),
    "two processes": Elsewhere(lambda here: Processes(2, here)),
    "Ray": Elsewhere(lambda here: Ray(workers=2, compute=here)),
}


@dataclass(frozen=True)
class Played:
    """A few rounds of an experiment: the final state, the records and the measurements of each round."""

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


class RuntimeComparison:
    """An experiment in one process, played when it is first compared with another runtime."""

    def __init__(self, experiment: Experiment):
        lower = experiment.algorithm.local.optimizer.lr / 10
        self.slower = shrunk(experiment, ENGINE_ROUNDS).but(**{"algorithm.local.optimizer.lr": lower})
        self.experiment = experiment
        self._played: dict[bool, tuple[InProcess, Played]] = {}

    def with_(self, elsewhere: Elsewhere) -> Difference:
        """The difference there; raises AssertionError if not even the turnout is the same."""
        moves, experiment = elsewhere.moves, self.experiment if elsewhere.moves else self.slower
        if moves not in self._played:
            exact = InProcess(device="cpu", threads=1, precision="float64")
            here = one_process(experiment) if moves else exact
            self._played[moves] = here, played(experiment, here)
        here, one = self._played[moves]
        return difference(one, played(experiment, elsewhere.settings(here)), moves)


def acceptable(found: Difference, elsewhere: Elsewhere) -> bool:
    """Whether a difference is within the promise of the runtime."""
    return found.largest <= (0.0 if elsewhere.moves else CLOSE)


def small_recipes(recipes: Mapping[str, Mapping[str, Experiment]]) -> dict[str, Experiment]:
    """The variants of all recipes that need no other data, with few rounds, by recipe/variant."""
    found = {
        f"{recipe}/{variant}": shrunk(experiment)
        for recipe, variants in recipes.items()
        for variant, experiment in variants.items()
        if not recipe.startswith(OTHER_DATA)
    }
    return found | {name: found[name].but(**more) for name, more in MEASURED_TOO.items() if name in found}


def shrunk(experiment: Experiment, rounds: int = ROUNDS) -> Experiment:
    """The same with few rounds, in which all joins and leaves happen."""
    kept = [event for event in experiment.world.events if not isinstance(event, RandomEvents)]
    moved = [replace(e, round=min(e.round, rounds // 2)) if isinstance(e, Join | Leave) else e for e in kept]
    return experiment.but(rounds=rounds, seed=3, **{"world.events": tuple(moved)})


def one_process(experiment: Experiment) -> InProcess:
    """Settings with which one process computes each client's numbers independently of the others."""
    here = InProcess(device="cpu", threads=1)
    native = prepare(experiment.but(runtime=here)).runtime.describe()["engine"] == "native"
    return here if native else replace(here, precision="float64", chunk=1)


def played(experiment: Experiment, runtime: RuntimeSpec) -> Played:
    """All rounds of an experiment on a runtime."""
    track = prepare(experiment.but(runtime=runtime))
    try:
        state, records, values = track.begin(), [], []
        for t in range(experiment.rounds):
            state, record = track.round(state, t)
            records.append(record)
            values.append(track.evaluate(state, t).values)
        return Played(flatten(track.pack(state))[0], records, values)
    finally:
        track.runtime.close()


def difference(one: Played, other: Played, exact: bool = True) -> Difference:
    """The largest difference of two plays; without `exact`, bytes and whole numbers are not compared."""
    names = ("asked", "answered", "counted", "skipped", "events", *(("bytes_up", "bytes_down") if exact else ()))
    found = [of_tensors(one.state, other.state, "state", exact)]
    for a, b in zip(one.records, other.records, strict=True):
        for name in names:
            mine, theirs = getattr(a, name), getattr(b, name)
            assert mine == theirs, f"round {a.round}: {name} is {mine} in one process and {theirs} elsewhere"
        found.append(of_tensors(a.clients, b.clients, f"round {a.round}", exact))
        beside = of_tensors(_numbers(a.extra), _numbers(b.extra), f"round {a.round}", exact)
        found.append(beside if beside.largest > RECORDED else Difference(0.0))
    for t, (mine, theirs) in enumerate(zip(one.values, other.values, strict=True)):
        found.append(of_tensors(_numbers(mine), _numbers(theirs), f"measured after round {t}", exact))
    return max(found, key=lambda difference: difference.largest)


def of_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor], where: str, exact: bool) -> Difference:
    """The largest difference of named tensors, except of seconds."""
    assert one.keys() == other.keys(), f"{where}: {sorted(one.keys() ^ other.keys())} is only on one side"
    found = [
        Difference(_relative(value, other[name]), f"{where}, {name}")
        for name, value in one.items()
        if exact or (value.is_floating_point() and not name.startswith("bytes"))
        if not name.endswith("seconds")
    ]
    return max(found, key=lambda difference: difference.largest, default=Difference(0.0))


def _numbers(values: Mapping[str, float | str]) -> Tensors:
    """Recorded numbers by name, without texts."""
    numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def _relative(a: Tensor, b: Tensor) -> float:
    """The largest difference over the largest number; infinite where shapes or NaNs differ.

    >>> _relative(torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0])), _relative(torch.zeros(1), torch.zeros(2))
    (0.25, inf)
    """
    if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    if not a.numel() or torch.equal(a, b):
        return 0.0
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-300))
