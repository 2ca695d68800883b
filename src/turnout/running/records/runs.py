"""The records of one run, or of several variants and seeds: curves, totals, means over seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.running.records.glossary import Glossary
from turnout.running.records.records import FILE, Records
from turnout.running.records.schema import Column
from turnout.tasks import MetricInfo

Floats = NDArray[np.float64]

SPENT = ("rounds", "bytes", "seconds")  # what reaching a target takes
NO_CURVE = (np.array([], np.int64), np.array([], np.float64))


@dataclass(frozen=True)
class FoundRun:
    """A run of a folder.

    variant  the name of its experiment
    seed     as listed; None for a run alone
    path     its folder
    """

    variant: str
    seed: int | None
    path: Path

    @property
    def name(self) -> str:
        """The variant, and the seed where it is one of several."""
        return self.variant if self.seed is None else f"{self.variant} seed {self.seed}"

    def text(self, name: str) -> str:
        """A text file of the run folder; empty if it is not there."""
        path = self.path / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def settings(self) -> dict[str, Any]:
        """The experiment file as tables; empty if it cannot be read."""
        try:
            return tomllib.loads(self.text("experiment.toml"))
        except (OSError, ValueError, RecursionError):
            return {}


@dataclass(frozen=True)
class RunRecords(FoundRun):
    """A run with its records.

    rounds         the columns of the rounds, by name
    curves         by metric: (rounds, values)
    client_values  by metric: (clients, values) of the last time it was measured
    events         (round, client, kind, detail)
    has_friends    whether a friend stood in for any client
    glossary       which way each metric is better, and its unit
    warned         warnings from before the first round
    names          of the clients, where the data has names
    """

    rounds: dict[str, Column]
    curves: dict[str, tuple[Column, Column]]
    client_values: dict[str, tuple[Column, Column]]
    events: list[tuple[int, int, str, str]]
    has_friends: bool = False
    glossary: Glossary = field(default_factory=Glossary)
    warned: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def client(self, number: int) -> str:
        """A client's name, or its number where it has none."""
        return self.names[number] if 0 <= number < len(self.names) else str(number)

    def final(self, metric: str) -> float:
        """The last value measured; NaN if none."""
        _, values = self.curves.get(metric, NO_CURVE)
        return float(values[-1]) if len(values) else float("nan")

    def best(self, metric: str) -> float:
        """The best value measured; NaN if none."""
        _, values = self.curves.get(metric, NO_CURVE)
        pick = np.max if self.glossary.higher_is_better(metric) else np.min
        return float(pick(values)) if len(values) else float("nan")

    def rounds_to(self, metric: str, target: float) -> int | None:
        """Rounds trained when the metric first reached a target; None if it never did."""
        rounds, values = self.curves.get(metric, NO_CURVE)
        reached = values >= target if self.glossary.higher_is_better(metric) else values <= target
        return int(rounds[reached.argmax()]) + 1 if reached.any() else None

    def spent_to(self, metric: str, target: float) -> dict[str, float | None]:
        """Rounds, bytes (both ways) and seconds until the metric first reached a target; None if it never did."""
        reached = self.rounds_to(metric, target)
        if reached is None:
            return dict.fromkeys(SPENT)
        trained_T = self.rounds["round"].astype(np.int64) < reached
        columns = (self.rounds[name].astype(np.float64)[trained_T] for name in ("bytes_up", "bytes_down", "seconds"))
        up, down, seconds = (float(np.nansum(column)) for column in columns)
        return dict(zip(SPENT, (float(reached), up + down, seconds), strict=True))

    @cached_property
    def seed_number(self) -> int:
        """The seed it ran with: as listed, else that of its experiment file or of its folder `seed-N`."""
        if self.seed is not None:
            return self.seed
        named = self.path.absolute().name.removeprefix("seed-")
        return int(self.settings().get("seed", named if named.isdecimal() else 0))

    def total(self, column: str) -> float:
        """The sum of a column of the rounds; gaps count as 0."""
        return float(np.nansum(self.rounds[column].astype(np.float64)))

    def mean(self, column: str) -> float:
        """The mean of a column over the rounds that have it; NaN if none does."""
        return mean_of(self.rounds[column])

    def shifts(self) -> dict[int, str]:
        """By round: how the objective or the test set of global metrics shifted."""
        by_round: dict[int, list[str]] = {}
        for name in ("objective", "test_set"):
            for t, words in zip(self.rounds["round"].tolist(), self.rounds.get(name, ()), strict=False):
                if isinstance(words, str):
                    by_round.setdefault(t, []).append(f"{name.replace('_', ' ')} {words.replace('->', '→')}")
        return {t: "; ".join(words) for t, words in sorted(by_round.items())}

    def attendance(self) -> float:
        """The share of the clients asked that answered, over all rounds; NaN if none was asked."""
        asked = self.total("asked")
        return self.total("answered") / asked if asked else float("nan")

    def weight_sums(self) -> Floats:
        """The sum of weights in each round, old updates that stood in (`Stale`) included."""
        weighed_T = self.rounds["weight_sum"].astype(np.float64)
        return weighed_T + np.nan_to_num(self.rounds.get("stale_weight", np.zeros(1)).astype(np.float64))

    def turnout(self, after: int = -1) -> tuple[Column, Column, Column]:
        """(rounds, clients, work) of every client asked after a round."""
        kind = np.dtype([("round", np.int64), ("client", np.int64), ("work", np.float64)])
        with Records.read(self.path / FILE) as records:
            rows = np.fromiter(records.turnout_rows(after), dtype=kind)
        return rows["round"], rows["client"], rows["work"]

    def friends(self) -> tuple[Column, Column]:
        """(clients, friends) of every time a friend stood in."""
        query = "SELECT client, friend FROM clients WHERE friend >= 0 AND friend != client"
        with Records.read(self.path / FILE) as records:
            kind = np.dtype([("client", np.int64), ("friend", np.int64)])
            pairs = np.fromiter(records.rows(query), dtype=kind)
        return pairs["client"], pairs["friend"]


@dataclass(frozen=True)
class Runs:
    """All runs of a folder.

    title    what they are called together
    runs     those with records
    waiting  how many are listed and have no records yet
    target   of `runs.json`, else the one at which the first run was to stop
    metric   the main one, likewise
    """

    title: str
    runs: tuple[RunRecords, ...]
    waiting: int = 0
    target: float | None = None
    metric: str | None = None

    @cached_property
    def variants(self) -> dict[str, list[RunRecords]]:
        """The runs of each variant, one per seed, in the order listed."""
        by_variant: dict[str, list[RunRecords]] = {}
        for run in self.runs:
            by_variant.setdefault(run.variant, []).append(run)
        return by_variant

    @cached_property
    def glossary(self) -> Glossary:
        """Which way each metric is better, and its unit; the first run that knows a metric decides."""
        known: dict[str, MetricInfo] = {}
        for run in self.runs:
            known |= {name: info for name, info in run.glossary.metrics.items() if name not in known}
        return Glossary(known)

    @cached_property
    def metrics(self) -> list[str]:
        """Everything evaluated; the main metric first."""
        names = self.glossary.in_order({name for run in self.runs for name in run.curves})
        return sorted(names, key=lambda name: name != self.metric)

    @cached_property
    def client_metrics(self) -> list[str]:
        """Everything measured of single clients; the main metric first."""
        return self.glossary.in_order({name for run in self.runs for name in run.client_values})

    @cached_property
    def shifts(self) -> dict[int, str]:
        """The shifts of all runs by round; where they differ, the first few."""
        by_round: dict[int, dict[str, None]] = {}
        for run in self.runs:
            for t, words in run.shifts().items():
                by_round.setdefault(t, {})[words] = None
        return {
            t: " / ".join([*words][:3]) + (" / ..." if len(words) > 3 else "") for t, words in sorted(by_round.items())
        }

    def curve(self, variant: str, metric: str) -> tuple[Floats, Floats, Floats]:
        """(rounds trained, mean over seeds, standard deviation) of a metric; the deviation is NaN for one seed."""
        pairs = [run.curves[metric] for run in self.variants[variant] if metric in run.curves]
        rounds, mean, deviation = mean_curve(pairs)
        return rounds + 1, mean, deviation

    def column(self, variant: str, name: str) -> tuple[Floats, Floats, Floats]:
        """(rounds, mean over seeds, standard deviation) of a column of the rounds."""
        columns = [run.rounds for run in self.variants[variant] if name in run.rounds]
        return mean_curve([(r["round"], r[name].astype(np.float64)) for r in columns])


def mean_of(values: Column) -> float:
    """The mean of the values that are not NaN; NaN if none is."""
    known = values.astype(np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")


def mean_curve(pairs: Iterable[tuple[Column, Column]]) -> tuple[Floats, Floats, Floats]:
    """Mean and standard deviation (n - 1) at every round that any of the curves has.

    >>> x, mean, deviation = mean_curve([([0, 1], [1.0, 2.0]), ([0], [3.0])])
    >>> x.tolist(), mean.tolist(), deviation.round(3).tolist()
    ([0.0, 1.0], [2.0, 2.0], [1.414, nan])
    """
    known = [(np.asarray(x), np.asarray(y, np.float64)) for x, y in pairs if len(x)]
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in known]
    if not known:
        return np.array([]), np.array([]), np.array([])
    rounds, place = np.unique(np.concatenate([x for x, _ in known]), return_inverse=True)
    values = np.concatenate([y for _, y in known])
    count = np.bincount(place, minlength=len(rounds))
    mean = np.bincount(place, values, len(rounds)) / count
    square = np.bincount(place, (values - mean[place]) ** 2, len(rounds))
    deviation = np.sqrt(np.divide(square, count - 1, out=np.full(len(rounds), np.nan), where=count > 1))
    return rounds.astype(np.float64), mean, deviation
