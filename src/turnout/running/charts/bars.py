"""One value a client as SVG: bars from worst to best, or how many lie where; who it is, under the pointer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnout.running.charts.axes import Axis, Floats, make_axis, value_axis
from turnout.running.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, frame, grid, text
from turnout.running.charts.units import Unit, show

BINS = 30
NAMED = 5  # clients of a bin

Ends = tuple[float, float]


def bars(
    values: Floats,
    title: str,
    marked: int = 0,
    unit: Unit = "number",
    x_label: str = "",
    names: Sequence[str] = (),
    ends: Ends | None = None,
) -> str:
    """One bar per value in the order given; the first `marked` stand out, a line shows the mean.

    `names`: whose each value is. `ends`: the range of charts that this one is compared with.
    """
    v = np.asarray(values, np.float64)
    who = [name for name, value in zip(names, v, strict=True) if np.isfinite(value)] if names else []
    v = v[np.isfinite(v)]
    if not len(v):
        return ""
    low, high = ends or (v.min(), v.max())
    y = value_axis(min(0.0, float(low)), max(0.0, float(high)), HEIGHT - BOTTOM, 34, unit)
    step = (WIDTH - LEFT - RIGHT) / len(v)
    width = max(step - min(2.0, step * 0.2), 0.4)
    base = float(y.place(0.0))
    parts = []
    for i, (value, at) in enumerate(zip(v, y.place(v), strict=True)):
        box = f'x="{LEFT + i * step:.1f}" y="{min(at, base):.1f}" width="{width:.2f}" height="{abs(at - base):.1f}"'
        words = f"{who[i]}: {show(value, unit)}" if who else show(value, unit)
        parts.append(_bar(box, i < marked, words))
    x = Axis(0, 1, LEFT, WIDTH - RIGHT, (), ())
    return frame(title, grid(x, y, x_label) + "".join(parts) + _mean_line(float(v.mean()), y, unit))


def histogram(
    values: Floats,
    title: str,
    unit: Unit = "number",
    x_label: str = "",
    ends: Ends | None = None,
    low_is_worst: bool = True,
    names: Sequence[str] = (),
    most: float | None = None,
) -> str:
    """How many values lie where, in 30 bins; those that hold only the worst tenth stand out.

    `most`: the fullest bin of the charts that this one is compared with.
    """
    v = np.asarray(values, np.float64)
    who = [name for name, value in zip(names, v, strict=True) if np.isfinite(value)] if names else []
    v = v[np.isfinite(v)]
    if not len(v):
        return ""
    count, edge = np.histogram(v, bins=BINS, range=ends)
    x = make_axis(edge[0], edge[-1], LEFT, WIDTH - RIGHT, unit, about=6)
    y = value_axis(0.0, float(most or count.max()), HEIGHT - BOTTOM, 34, "count")
    worst = np.quantile(v, [0.1, 0.9])
    place = np.clip(np.searchsorted(edge, v, side="right") - 1, 0, BINS - 1)
    parts = []
    for i, (n, left, right) in enumerate(zip(count, edge[:-1], edge[1:], strict=True)):
        a, b, at = float(x.place(left)), float(x.place(right)), float(y.place(float(n)))
        low = bool(right <= worst[0] if low_is_worst else left >= worst[1])
        box = f'x="{a:.1f}" y="{at:.1f}" width="{max(b - a - 1, 0.4):.1f}" height="{HEIGHT - BOTTOM - at:.1f}"'
        inside = [who[k] for k in np.flatnonzero(place == i)[:NAMED]] if who else []
        said = f" ({', '.join(inside)}{', …' if n > NAMED else ''})" if inside else ""
        parts.append(_bar(box, low, f"{show(left, unit)} to {show(right, unit)}: {n}{said}"))
    return frame(title, grid(x, y, x_label) + "".join(parts))


def fullest(values: Floats, ends: Ends) -> float:
    """How many values the fullest bin of a histogram holds."""
    return float(np.histogram(values, bins=BINS, range=ends)[0].max())


def _bar(box: str, low: bool, words: str) -> str:
    return f'<rect class="bar{" low" if low else ""}" {box}><title>{text(words)}</title></rect>'


def _mean_line(mean: float, y: Axis, unit: Unit) -> str:
    at = float(y.place(mean))
    line = f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return line + f'<text class="tick" x="{LEFT + 6}" y="{at - 5:.1f}">mean {show(mean, unit)}</text>'
