"""Axes with round numbers: where the ticks are, what they say, and where a value lies in the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.running.charts.units import Unit, size

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` laid from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    log: bool = False

    def place(self, values: Floats | float) -> Floats:
        """Where values lie, in pixels.

        >>> make_axis(0, 10, 100, 200).place(5)
        array(150.)
        """
        scale = np.log10 if self.log else np.asarray
        low, high, v = (scale(np.asarray(x, np.float64)) for x in (self.low, self.high, values))
        return np.asarray(self.start + (v - low) / (high - low) * (self.end - self.start))


def round_ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within a range; whole numbers where things are counted.

    >>> round_ticks(0, 1), round_ticks(3, 97), round_ticks(29, 30, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [20.0, 40.0, 60.0, 80.0], [29.0, 30.0])
    """
    step = _step(high - low, about)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _step(width: float, about: int) -> float:
    rough = width / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range, and 2 and 5 times them where these are few.

    >>> log_ticks(1, 300), log_ticks(0.001, 1000)
    ([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0], [0.001, 0.1, 10.0, 1000.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 3)
    ticks = [float(f"{m}e{p}") for p in range(first, last + 1, every) for m in factors]
    return [v for v in ticks if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]


def make_axis(
    low: float, high: float, start: float, end: float, unit: Unit = "number", log: bool = False, about: int = 5
) -> Axis:
    """An axis for data in a range."""
    if not high > low:
        pad = 1.0 if unit == "count" else abs(low) * 0.1 or 1.0
        most = 1.0 if unit == "percent" and high <= 1 else math.inf  # no client does more than all of the work
        low, high = (low / 2, low * 2) if log else (low - pad, min(high + pad, most))
    ticks = log_ticks(low, high) if log else round_ticks(low, high, about, unit == "count")
    return Axis(low, high, start, end, tuple(ticks), tuple(tick_labels(ticks, unit)), log)


def value_axis(low: float, high: float, start: float, end: float, unit: Unit = "number", log: bool = False) -> Axis:
    """An axis for what is measured: widened to round numbers, from 0 where that costs little."""
    if log and low > 0:
        return make_axis(low, high, start, end, unit, log=True)
    if 0 < low < 0.4 * high:
        low = 0.0
    if high > low:
        step = max(_step(high - low, 5), 1.0 if unit == "count" else 0.0)
        low = math.floor(low / step + 1e-6) * step
        high = math.ceil(high / step - 1e-6) * step
    return make_axis(low, high, start, end, unit)


def tick_labels(ticks: list[float], unit: Unit) -> list[str]:
    """All ticks of an axis with the same number of digits.

    >>> tick_labels([0.0, 0.5, 1.0], "percent"), tick_labels([0.0, 0.25, 0.5], "number")
    (['0 %', '50 %', '100 %'], ['0', '0.25', '0.5'])
    """
    if unit == "percent":
        return [f"{100 * v:.4g} %" for v in ticks]
    if unit == "bytes":
        return [size(v) for v in ticks]
    return [f"{v:,.6g}" if abs(v) < 1e6 else f"{v:.3g}" for v in ticks]
