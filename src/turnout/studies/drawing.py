"""Pictures of a study: charts with bands over seeds, as standalone SVG files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from turnout.report.charts import Series, line_chart, sheet
from turnout.report.style import CHART_CSS
from turnout.report.units import Unit
from turnout.studies.claims import BySeed
from turnout.studies.study import Curves

Chart = tuple[str, str, Sequence[Series]]  # title, what is on the x axis, lines


def band(name: str, x: Sequence[float], values: Sequence[BySeed], colour: int, factor: float = 1.0) -> Series:
    """A line through the means over seeds, with a band of one standard deviation either side."""
    mean = np.array([np.mean(list(v.values())) for v in values]) * factor
    deviation = np.array([np.std(list(v.values()), ddof=1) if len(v) > 1 else 0.0 for v in values]) * factor
    return Series(name, np.asarray(x, np.float64), mean, colour, mean - deviation, mean + deviation)


def over_rounds(curves: Curves, variants: Mapping[str, str], change: Callable[[float], float] = float) -> list[Series]:
    """One line a variant (name to show -> variant) over the rounds, from the first: mean and band over seeds."""
    found = []
    for i, (name, variant) in enumerate(variants.items()):
        by_seed = curves.curves[variant]
        round_T = next(iter(by_seed.values())).round_T
        shown = [k for k in range(len(round_T)) if round_T[k] >= 0]
        values = [{seed: change(float(curve.value_T[k])) for seed, curve in by_seed.items()} for k in shown]
        found.append(band(name, (round_T[shown] + 1).tolist(), values, i))
    return found


def picture(charts: Sequence[Chart], unit: Unit = "number", log: bool = False) -> str:
    """Several charts as one SVG document."""
    log_y = True if log else None  # None: as the values ask for
    drawn = [line_chart(series, title, x, unit, log_x=log, log_y=log_y) for title, x, series in charts]
    return sheet(drawn, CHART_CSS)
