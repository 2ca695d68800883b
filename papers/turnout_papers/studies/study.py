"""What a study is: the experiments behind a published table or figure, and what their records say about it.

A study is a value. `plan(scale)` gives its experiments; `rows` and `claims` are pure functions of the curves that came
out, so they can be read (and tested) without running anything. They name every variant they need: of one that was not
run the numbers by seed are empty, and so are the rows and claims made from them.

Shape letters: T evaluated rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from turnout import Experiment, Run
from turnout.running.charts.units import Unit
from turnout.running.runs import Outcome
from turnout.settings import InProcess
from turnout_papers.studies.claims import (
    NOT_RUN,
    BySeed,
    Claim,
    at_look,
    best_elsewhere,
    better,
    difference,
    first_decided,
)

Look = Mapping[str, NDArray[np.float64]]  # what else a study reads from a finished run, by name
Pair = tuple[str, str]  # of two variants, the first less the second
Variant = str | Pair
Option = TypeVar("Option")  # a setting that is tuned
Number = Callable[["Curve"], float]  # of a run's curve
TUNING_SEEDS = 100  # the first of the seeds that settings are chosen on; they are judged on others, from 0


@dataclass(frozen=True)
class Part:
    """Experiments that are run with the same seeds: a folder of runs.

    name        of the folder
    variants    the experiments by name
    seeds       how many
    first_seed  the first of them
    play        how they are run, where that is not in this program (on devices, for example)
    """

    name: str
    variants: Mapping[str, Experiment]
    seeds: int
    first_seed: int = 0
    play: Callable[..., Outcome] | None = None  # (plan, jobs=, quiet=, data_dir=)

    @property
    def seed_range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True)
class StudyPlan:
    """What a study runs at one scale.

    parts  one after another
    notes  what was shrunk, and what the paper leaves open
    """

    parts: Sequence[Part]
    notes: Sequence[str] = ()

    @classmethod
    def at(
        cls, scale: str, parts: Sequence[Part], notes: Sequence[str], shrunk: str, paper: Sequence[str] = ()
    ) -> StudyPlan:
        """With a note on what is shrunk at smaller scales, and those that are for the paper's scale alone."""
        return cls(parts, [*notes, *paper] if scale == "paper" else [f"shrunk: {shrunk}", *notes])


@dataclass(frozen=True)
class Curve:
    """One run's metric over the rounds.

    round_T  the rounds it was evaluated in (-1: before training)
    value_T  its values
    """

    round_T: NDArray[np.int64]
    value_T: NDArray[np.float64]

    @classmethod
    def diverged(cls, worst: float) -> Curve:
        """Of a run that diverged: the worst value there is."""
        return cls(np.array([0]), np.array([worst]))

    @property
    def rounds(self) -> int:
        return int(self.round_T[-1]) + 1

    def mean(self, after: float = -math.inf, upto: float = math.inf) -> float:
        """Mean of the values of rounds in (after, upto]; NaN where there are none."""
        chosen_T = self.value_T[(self.round_T > after) & (self.round_T <= upto)]
        return float(chosen_T.mean()) if len(chosen_T) else math.nan

    def end(self, part: int) -> Curve:
        """The last fifth (5), tenth (10), ... of the rounds; at least the last one."""
        late_T = self.round_T >= self.rounds - max(1, self.rounds // part)
        return Curve(self.round_T[late_T], self.value_T[late_T])

    def rounds_to(self, target: float, start: int = 0) -> int | None:
        """Rounds trained from `start` on until the value is at least the target; None if it never is."""
        there = self.round_T[(self.value_T >= target) & (self.round_T >= start)]
        return int(there[0]) - start + 1 if len(there) else None


def last_fifth(curve: Curve) -> float:
    """In percent: the mean over the last fifth of the rounds."""
    return 100 * curve.end(5).mean()


def last_tenth(curve: Curve) -> float:
    """In percent: the mean over the last tenth of the rounds."""
    return 100 * curve.end(10).mean()


def unrest(curve: Curve) -> float:
    """Root mean square change of accuracy from round to round, over the last half, in points."""
    later_T = curve.value_T[curve.round_T >= curve.rounds // 2]
    return 100 * math.sqrt(float(np.square(np.diff(later_T)).mean())) if len(later_T) > 1 else math.nan


@dataclass(frozen=True)
class Curves:
    """What the runs of a study gave.

    curves   variant -> seed -> curve of the study's metric
    missing  why a variant was not run
    more     the study's other metrics, for the runs that measured them
    looks    what else the study read from its runs
    runs     variant -> seed -> the finished run itself, for parts that start from what an earlier one trained
    """

    curves: Mapping[str, Mapping[int, Curve]]
    missing: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Curves] = field(default_factory=dict)
    looks: Mapping[str, Mapping[int, Look]] = field(default_factory=dict)
    runs: Mapping[str, Mapping[int, Run]] = field(default_factory=dict)

    def of(self, metric: str) -> Curves:
        """Another of the study's metrics, for the runs that measured it."""
        return self.more.get(metric) or Curves({})

    def upto(self, seeds: int) -> Curves:
        """What there was at a look at so many seeds; those that settings are chosen on stay."""

        def some(by_variant: Mapping[str, Mapping[int, Any]]) -> dict[str, dict[int, Any]]:
            kept = {n: {s: x for s, x in of.items() if s < seeds or s >= TUNING_SEEDS} for n, of in by_variant.items()}
            return {name: of for name, of in kept.items() if of}

        more = {metric: other.upto(seeds) for metric, other in self.more.items()}
        return Curves(some(self.curves), self.missing, more, some(self.looks))

    def has(self, *variants: str) -> bool:
        return all(name in self.curves for name in variants)

    def finite(self, variant: str) -> dict[int, Curve]:
        """The curves of its runs that did not diverge, by seed."""
        return {seed: c for seed, c in self.curves.get(variant, {}).items() if not np.isinf(c.value_T[-1])}

    def each(self, variant: Variant, number: Number) -> dict[int, float]:
        """A number computed from each seed's curve; of a pair of variants the first's less the second's.

        Of a run that diverged it is ±∞, or missing where such a curve has no such number (its unrest, for example).
        """
        if isinstance(variant, tuple):
            return difference(self.each(variant[0], number), self.each(variant[1], number))
        with np.errstate(invalid="ignore"):
            found = {seed: number(curve) for seed, curve in self.curves.get(variant, {}).items()}
        finite = self.finite(variant)
        return {seed: v for seed, v in found.items() if seed in finite or not math.isnan(v)}

    def seen(self, variant: str, number: Callable[[Look], float]) -> dict[int, float]:
        """A number computed from what else was read from each seed's run."""
        return {seed: number(look) for seed, look in self.looks.get(variant, {}).items()}

    def row(
        self, case: str, metric: str, variant: Variant, number: Number, published: float | str | None = None
    ) -> ResultRow:
        return row(case, metric, self.each(variant, number), published)

    def better(
        self, claim: str, ours: Variant, theirs: Variant, number: Number, unit: str = "points", margin: float = 0.0
    ) -> Claim:
        """Ours is larger than theirs (with a margin: or less than that smaller), paired by seed.

        Either is a variant, or a pair of which the first's number less the second's is compared.
        """
        return better(claim, self.each(ours, number), self.each(theirs, number), unit, margin)


def choose(curves: Curves, options: Mapping[str, Option], score: Number, seeds: int) -> Option | None:
    """The option with the best score on other seeds than the first, which judge it; None if no variant was run."""
    scores = {name: curves.each(name, score) for name in options if curves.has(name)}
    return options[best_elsewhere(scores, range(seeds))] if scores else None


@dataclass(frozen=True)
class ResultRow:
    """One number beside its published counterpart.

    case, metric  what it is of
    ours          the mean over seeds; a text where it is not a number; None where there is no number
    spread        the standard deviation over seeds
    repeats       how many seeds
    published     what the paper prints
    diverged      in how many of the seeds a run diverged: mean and spread are of the others
    """

    case: str
    metric: str
    ours: float | str | None
    spread: float | None
    repeats: int
    published: float | str | None
    diverged: int = 0


def row(case: str, metric: str, value: BySeed, published: float | str | None = None) -> ResultRow:
    """Mean and spread over seeds; None for a number that does not exist; without any seed a row that was not run.

    >>> found = row("MNIST", "B over A", {0: 1.0, 1: 3.0, 2: -math.inf}, 2.5)
    >>> found.ours, round(found.spread, 3), found.repeats, found.diverged
    (2.0, 1.414, 3, 1)
    """
    if not value:
        return ResultRow(case, metric, NOT_RUN, None, 0, published)
    values = [v for v in value.values() if not math.isinf(v)]
    diverged = len(value) - len(values)
    mean = math.fsum(values) / len(values) if values else math.nan
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else math.nan
    known = [number if math.isfinite(number) else None for number in (mean, spread)]
    return ResultRow(case, metric, known[0], known[1], len(value), published, diverged)


@dataclass(frozen=True)
class Chart:
    """Some variants drawn over the rounds.

    title   of the chart
    lines   variants by label; those that were not run are left out
    metric  another of the study's metrics than its first
    unit    of the values
    change  what is drawn in place of a value
    bytes   over the bytes sent, both ways, instead of the rounds
    log     both axes are logarithmic
    """

    title: str
    lines: Mapping[str, str]
    metric: str | None = None
    unit: Unit = "percent"
    change: Callable[[float], float] = float
    bytes: bool = False
    log: bool = False


@dataclass(frozen=True)
class Study:
    """A published table or figure.

    name      what `turnout study run` calls it
    about     the docstring of its module, whose first line says what it reproduces
    metric    the evaluated metric its curves are of
    plan      the experiments at a scale
    rows      its numbers beside the published ones
    claims    what the paper claims, decided
    figures   the charts of each picture, by file name
    more      other metrics or columns of the records, for the runs that have them
    look      what else it reads from a finished run
    then      further parts, made from the results of the first: settings chosen there, judged here on other seeds. It
              is asked again when they have ended, until it names no new part
    pictures  SVG documents that are not of curves over the rounds, by file name
    looks     the numbers of seeds at which claims are decided at paper scale, fixed before the first run; none: at any
    """

    name: str
    about: str | None
    metric: str
    plan: Callable[[str], StudyPlan]
    rows: Callable[[str, Curves], Iterable[ResultRow]]
    claims: Callable[[str, Curves], Iterable[Claim]]
    figures: Callable[[str], Mapping[str, Sequence[Chart]]] = lambda scale: {}
    more: tuple[str, ...] = ()
    look: Callable[[Run], Look] | None = None
    then: Callable[[str, Curves], Sequence[Part]] | None = None
    pictures: Callable[[str, Curves], dict[str, str]] = lambda scale, curves: {}
    looks: tuple[int, ...] = ()

    def looks_at(self, scale: str) -> tuple[int, ...]:
        return self.looks if scale == "paper" else ()

    @property
    def reproduces(self) -> str:
        return (self.about or "").partition("\n")[0].rstrip(".")

    def decide(self, scale: str, curves: Curves) -> list[Claim]:
        """The claims; of those that were not run, the reasons why runs are missing."""
        why = "; ".join(dict.fromkeys(curves.missing.values())) or "it is not part of this scale"
        looks = self.looks_at(scale)
        by_look = [[at_look(c, looks) for c in self.claims(scale, curves.upto(n))] for n in looks]
        found = [first_decided(same) for same in zip(*by_look, strict=True)] if looks else self.claims(scale, curves)
        return [c if c.ran else replace(c, evidence=f"{NOT_RUN}: {why}") for c in found]


def in_tf32(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """With products rounded to TF32 where a GPU does that, as torch's convolutions are by default."""
    return {name: e.but(runtime=InProcess(precision="tf32")) for name, e in experiments.items()}
