"""Pictures of a study: charts with bands over seeds, as standalone SVG files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.svg import HEIGHT, WIDTH, sheet, text
from turnout.running.charts.units import Unit
from turnout.statistics import BySeed
from turnout_papers.studies.study import Curves

Chart = tuple[str, str, Sequence[Series]]  # title, what is on the x axis, lines


def band(name: str, x: Sequence[float], values: Sequence[BySeed], colour: int, factor: float = 1.0) -> Series:
    """A line through the means over seeds, with a band of one standard deviation either side."""
    mean = np.array([np.mean(list(v.values())) for v in values]) * factor
    deviation = np.array([np.std(list(v.values()), ddof=1) if len(v) > 1 else 0.0 for v in values]) * factor
    return Series(name, np.asarray(x, np.float64), mean, colour, mean - deviation, mean + deviation)


def over_rounds(curves: Curves, variants: Mapping[str, str], change: Callable[[float], float] = float) -> list[Series]:
    """One line a variant (name to show -> variant) over the rounds, from the first: mean and band over seeds.

    A round is drawn from the seeds that measured something in it (in some, say, no noisy client took part).
    """
    found = []
    for i, (name, variant) in enumerate(variants.items()):
        at: dict[int, dict[int, float]] = {}
        for seed, curve in curves.curves[variant].items():
            for t, value in zip(curve.round_T.tolist(), curve.value_T.tolist(), strict=True):
                at.setdefault(t, {})[seed] = change(value)
        shown = sorted(t for t in at if t >= 0)
        found.append(band(name, [t + 1.0 for t in shown], [at[t] for t in shown], i))
    return found


def matrix(value_KK: NDArray[np.float64], title: str, size: int) -> str:
    """A square matrix of numbers in [0, 1] as a chart, light to dark; lines separate groups of `size` rows."""
    count = len(value_KK)
    cell, left, top = 230 / count, 150, 40
    squares = "".join(
        f'<rect x="{left + j * cell:.2f}" y="{top + i * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}" '
        f'fill="{_shade(value_KK[i, j])}"><title>{i}, {j}: {value_KK[i, j]:.3f}</title></rect>'
        for i in range(count)
        for j in range(count)
    )
    lines = "".join(
        f'<path class="axis" d="M{left + k * cell:.2f} {top}v230M{left} {top + k * cell:.2f}h230"/>'
        for k in range(0, count + 1, size)
    )
    words = f'<text class="title" x="8" y="18">{text(title)}</text>'
    words += f'<text class="tick" x="{left}" y="{top + 246}">light 0, dark 1, grey: nothing to compare</text>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">{words}{squares}{lines}</svg>'


def _shade(value: float) -> str:
    """Light to dark blue; grey where there is nothing."""
    if not np.isfinite(value):
        return "#ddd"
    at = min(max(value, 0.0), 1.0)
    return "#" + "".join(f"{round(a + (b - a) * at):02x}" for a, b in ((247, 8), (251, 48), (255, 107)))


def picture(charts: Sequence[Chart], unit: Unit = "number", log: bool = False) -> str:
    """Several charts as one SVG document."""
    log_y = True if log else None  # None: decided by the values
    drawn = [line_chart(series, title, x, unit, log_x=log, log_y=log_y) for title, x, series in charts]
    return sheet(drawn)
