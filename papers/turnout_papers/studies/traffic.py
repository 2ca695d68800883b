"""Bytes that runs have sent, summed over rounds from their records, for studies that weigh accuracy against bytes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from turnout.running.charts.lines import Series
from turnout.statistics import BySeed
from turnout_papers.studies.study import Curve, Curves

WAYS = ("bytes_up", "bytes_down")  # the columns such a study lists in `more`

Spent = NDArray[np.float64]  # bytes up to and including each round


def spent(curves: Curves, variant: str, ways: tuple[str, ...] = WAYS) -> dict[int, Spent]:
    """The bytes each seed's run had sent after each round, both ways together or one of them."""
    found = [curves.of(way).curves[variant] for way in ways]
    return {seed: np.cumsum(sum(way[seed].value_T for way in found)) for seed in found[0]}


def total(curves: Curves, variant: str, ways: tuple[str, ...] = WAYS) -> dict[int, float]:
    return {seed: float(spent_T[-1]) for seed, spent_T in spent(curves, variant, ways).items()}


def megabytes(value: BySeed) -> dict[int, float]:
    return {seed: bytes_ / 1e6 for seed, bytes_ in value.items()}


def reached(curve: Curve, spent_T: Spent, target: float) -> tuple[float, float]:
    """The rounds and the bytes until a value was first reached; NaN where it never was."""
    there_I = curve.round_T[(curve.round_T >= 0) & (curve.value_T >= target)]
    return (float(there_I[0] + 1), float(spent_T[there_I[0]])) if len(there_I) else (math.nan, math.nan)


def within(curve: Curve, spent_T: Spent, allowed: float) -> float:
    """The last value measured within a budget of bytes; 0 where there is none."""
    trained_T = curve.round_T >= 0
    affordable = curve.value_T[trained_T][spent_T[curve.round_T[trained_T]] <= allowed]
    return float(affordable[-1]) if len(affordable) else 0.0


def by_bytes(curves: Curves, variant: str, name: str, colour: int) -> Series:
    """A line of values over bytes: means over seeds, at the measured rounds."""
    by_seed = curves.curves[variant]
    first = next(iter(by_seed.values()))
    trained_T = first.round_T >= 0
    bytes_T = np.mean([spent_T[first.round_T[trained_T]] for spent_T in spent(curves, variant).values()], 0)
    return Series(name, bytes_T, np.mean([curve.value_T[trained_T] for curve in by_seed.values()], 0), colour)
