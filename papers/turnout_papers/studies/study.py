"""What a study is: the experiments behind a published table or figure, and what their records say about it.

A study is a value. `plan(scale)` gives its experiments; `rows`, `claims` and `pictures` are pure functions of the
curves that came out, so they can be read (and tested) without running anything.

Shape letters: T evaluated rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from turnout.errors import UserError, nearest
from turnout.experiment import Experiment
from turnout.running.plan import RunPlan
from turnout.running.planned import Outcome
from turnout.running.result import Run
from turnout.settings import InProcess
from turnout.statistics import BySeed
from turnout_papers.studies.claims import NOT_RUN, Claim

SCALES = ("smoke", "small", "paper")


class Play(Protocol):
    """How the runs of a plan are made; what is complete already is not made again."""

    def __call__(self, plan: RunPlan, *, jobs: int | None, quiet: bool, data_dir: Path | None) -> Outcome: ...


@dataclass(frozen=True)
class Part:
    """Experiments that are run with the same seeds, from `first_seed` on: a folder of runs.

    play  how they are run, where that is not in this program (on devices, say)
    """

    name: str
    variants: Mapping[str, Experiment]
    seeds: int
    first_seed: int = 0
    play: Play | None = None

    @property
    def seed_range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True)
class Plan:
    """What a study runs at one scale; `notes` say what was shrunk and what the paper leaves open."""

    parts: Sequence[Part]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Curve:
    """One run's metric over the rounds (-1: before training)."""

    round_T: NDArray[np.int64]
    value_T: NDArray[np.float64]

    def mean(self, after: float = -math.inf, upto: float = math.inf) -> float:
        """Mean of the values of rounds in (after, upto]; NaN where there are none."""
        chosen_T = self.value_T[(self.round_T > after) & (self.round_T <= upto)]
        return float(chosen_T.mean()) if len(chosen_T) else math.nan

    def end(self, part: int) -> Curve:
        """The last fifth (5), tenth (10), ... of the rounds; at least the last one."""
        rounds = int(self.round_T[-1]) + 1
        late_T = self.round_T >= rounds - max(1, rounds // part)
        return Curve(self.round_T[late_T], self.value_T[late_T])


Look = Mapping[str, NDArray[np.float64]]  # what else a study reads from a finished run, by name


@dataclass(frozen=True)
class Curves:
    """What came out: variant -> seed -> curve, why a variant was not run, and which runs failed on the way.

    `more` has the study's other metrics, `looks` what else it read from its runs, `stalled` those that did not move in
    the end, `folders` where they are.
    """

    curves: Mapping[str, Mapping[int, Curve]]
    missing: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Curves] = field(default_factory=dict)
    looks: Mapping[str, Mapping[int, Look]] = field(default_factory=dict)
    failed: Sequence[str] = ()
    stalled: Sequence[str] = ()
    folders: Sequence[Path] = ()

    def of(self, metric: str) -> Curves:
        """Another of the study's metrics, for the runs that measured it."""
        return self.more[metric]

    def has(self, *variants: str) -> bool:
        return all(name in self.curves for name in variants)

    def each(self, variant: str, number: Callable[[Curve], float]) -> dict[int, float]:
        """A number computed from each seed's curve."""
        if variant not in self.curves:
            raise UserError(f"the study's numbers need {variant!r}, which was {self.why_missing(variant)}")
        return {seed: number(curve) for seed, curve in self.curves[variant].items()}

    def seen(self, variant: str, number: Callable[[Look], float]) -> dict[int, float]:
        """A number computed from what else was read from each seed's run."""
        return {seed: number(look) for seed, look in self.looks[variant].items()}

    def why_missing(self, *variants: str) -> str:
        why = next((self.missing[name] for name in variants if name in self.missing), "it is not part of this scale")
        return f"{NOT_RUN}: {why}"


@dataclass(frozen=True)
class Row:
    """One number beside its published counterpart; `spread` is the standard deviation over `repeats` seeds."""

    case: str
    metric: str
    ours: float | str | None
    spread: float | None
    repeats: int
    published: float | str | None


def row(case: str, metric: str, value: BySeed, published: float | str | None = None) -> Row:
    """Mean and spread over seeds; a number that does not exist is None.

    >>> row("MNIST", "B over A", {0: 1.0, 1: 3.0}, 2.5)
    Row(case='MNIST', metric='B over A', ours=2.0, spread=1.4142135623730951, repeats=2, published=2.5)
    """
    values = list(value.values())
    mean = math.fsum(values) / len(values) if values else math.nan
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else math.nan
    return Row(case, metric, known(mean), known(spread), len(values), published)


def not_run(case: str, metric: str, published: float | str | None = None) -> Row:
    """A row whose runs are missing."""
    return Row(case, metric, NOT_RUN, None, 0, published)


def known(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Study:
    """A published table or figure.

    reproduces  what, in words
    metric      the evaluated metric its curves are of
    more        other metrics or columns of the records, for the runs that have them
    look        what else it reads from a finished run
    then        further parts, made from the results of the first: settings chosen there, judged here on other seeds
    """

    name: str
    reproduces: str
    metric: str
    plan: Callable[[str], Plan]
    rows: Callable[[str, Curves], list[Row]]
    claims: Callable[[str, Curves], list[Claim]]
    pictures: Callable[[str, Curves], dict[str, str]]
    more: tuple[str, ...] = ()
    look: Callable[[Run], Look] | None = None
    then: Callable[[str, Curves], Sequence[Part]] | None = None


def on_one_core(experiment: Experiment) -> Experiment:
    """The experiment on one core of the CPU: tiny models are fastest there."""
    return experiment.but(runtime=InProcess(device="cpu", threads=1))


def in_tf32(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """With products rounded to TF32 where a GPU does that, as torch's convolutions are where nobody says otherwise."""
    return {name: e.but(runtime=InProcess(precision="tf32")) for name, e in experiments.items()}


def check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise UserError(f"there is no scale {scale!r}: {nearest(scale, SCALES)}")
