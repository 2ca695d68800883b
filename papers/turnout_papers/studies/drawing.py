"""Pictures of a study: charts with bands over seeds, and accuracy against bytes, as standalone SVG files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.svg import HEIGHT, WIDTH, sheet, text
from turnout.running.charts.units import Unit
from turnout_papers.studies.claims import BySeed
from turnout_papers.studies.study import Curve, Curves, Study

WAYS = ("bytes_up", "bytes_down")  # the columns that a study of bytes lists in `more`


def band(name: str, x: Sequence[float], values: Sequence[BySeed], colour: int) -> Series:
    """A line through the means over seeds, with a band of one standard deviation either side."""
    mean = np.array([np.mean(list(v.values())) for v in values])
    deviation = np.array([np.std(list(v.values()), ddof=1) if len(v) > 1 else 0.0 for v in values])
    return Series(name, np.asarray(x, np.float64), mean, colour, mean - deviation, mean + deviation)


def over_rounds(curves: Curves, variants: Mapping[str, str], change: Callable[[float], float] = float) -> list[Series]:
    """One line for each variant (label -> variant) over the rounds, from the first: mean and band over seeds.

    A round is drawn from the seeds that measured something in it (in some, for example, no noisy client took part);
    runs that diverged are left out.
    """
    found = []
    for i, (name, variant) in enumerate(variants.items()):
        at: dict[int, dict[int, float]] = {}
        for seed, curve in curves.finite(variant).items():
            for t, value in zip(curve.round_T.tolist(), curve.value_T.tolist(), strict=True):
                at.setdefault(t, {})[seed] = change(value)
        shown = sorted(t for t in at if t >= 0)
        found.append(band(name, [t + 1.0 for t in shown], [at[t] for t in shown], i))
    return found


def draw(study: Study, scale: str, curves: Curves) -> dict[str, str]:
    """The study's pictures as SVG documents by file name; of charts, those of which a variant was run."""
    found = {}
    for name, charts in study.figures(scale).items():
        drawn = []
        for chart in charts:
            measured = curves if chart.metric is None else curves.of(chart.metric)
            lines = {label: variant for label, variant in chart.lines.items() if measured.finite(variant)}
            if lines and chart.bytes:
                drawn.append(bytes_chart(measured, curves, chart.title, lines, chart.unit))
            elif lines:
                series = over_rounds(measured, lines, chart.change)
                log_y = True if chart.log else None  # None: decided by the values
                drawn.append(line_chart(series, chart.title, "round", chart.unit, log_x=chart.log, log_y=log_y))
        if drawn:
            found[name] = sheet(drawn)
    return found | study.pictures(scale, curves)


def matrix(value_KK: NDArray[np.float64], title: str, size: int) -> str:
    """A square matrix of numbers in [0, 1] as a chart, light to dark; lines separate groups of `size` rows."""
    count = len(value_KK)
    cell, left, top = 230 / count, 150, 40

    def shade(value: float) -> str:
        if not np.isfinite(value):
            return "#ddd"
        at = min(max(value, 0.0), 1.0)
        return "#" + "".join(f"{round(a + (b - a) * at):02x}" for a, b in ((247, 8), (251, 48), (255, 107)))

    squares = "".join(
        f'<rect x="{left + j * cell:.2f}" y="{top + i * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}" '
        f'fill="{shade(value_KK[i, j])}"><title>{i}, {j}: {value_KK[i, j]:.3f}</title></rect>'
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


# -- bytes


def spent(curves: Curves, variant: str, ways: tuple[str, ...] = WAYS) -> dict[int, NDArray[np.float64]]:
    """The bytes that each seed's run had sent after each round, both ways together or one of them."""
    found = [curves.of(way).curves.get(variant, {}) for way in ways]
    return {seed: np.cumsum(sum(way[seed].value_T for way in found)) for seed in found[0]}


def megabytes(curves: Curves, variant: str, ways: tuple[str, ...] = WAYS) -> dict[int, float]:
    """Of each seed's whole run."""
    return {seed: float(spent_T[-1]) / 1e6 for seed, spent_T in spent(curves, variant, ways).items()}


def times_fewer(curves: Curves, dense: str, other: str, beyond: float = 0.0) -> dict[int, float]:
    """How many times fewer bytes (beyond a number) a run sent than one with whole messages, by seed."""
    ours, theirs = spent(curves, other), spent(curves, dense)
    return {seed: float(theirs[seed][-1]) / float(ours[seed][-1]) - beyond for seed in ours if seed in theirs}


def reached(curve: Curve, spent_T: NDArray[np.float64], target: float) -> tuple[float, float]:
    """The rounds and the bytes until a value was first reached; NaN where it never was."""
    rounds = curve.rounds_to(target)
    return (math.nan, math.nan) if rounds is None else (float(rounds), float(spent_T[rounds - 1]))


def within(curve: Curve, spent_T: NDArray[np.float64], allowed: float) -> float:
    """The last value measured within a budget of bytes; 0 where there is none."""
    trained_T = curve.round_T >= 0
    affordable = curve.value_T[trained_T][spent_T[curve.round_T[trained_T]] <= allowed]
    return float(affordable[-1]) if len(affordable) else 0.0


def bytes_chart(measured: Curves, curves: Curves, title: str, variants: Mapping[str, str], unit: Unit) -> str:
    """A chart of a metric over bytes, up and down: means over seeds, at the measured rounds."""
    lines = []
    for colour, (name, variant) in enumerate(variants.items()):
        by_seed = measured.finite(variant)
        round_T = next(iter(by_seed.values())).round_T
        trained_T = round_T >= 0
        bytes_T = np.mean([spent_T[round_T[trained_T]] for spent_T in spent(curves, variant).values()], 0)
        lines.append(Series(name, bytes_T, np.mean([c.value_T[trained_T] for c in by_seed.values()], 0), colour))
    return line_chart(lines, title, "bytes", unit, x_unit="bytes", log_x=True)
