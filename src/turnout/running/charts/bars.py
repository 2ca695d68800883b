"""One value per client as SVG: bars from worst to best, or a histogram; names of clients under the pointer."""

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
    """One bar per value in the order given, and a line at the mean.

    marked  the first so many stand out
    names   of the clients
    ends    the range of values, where several charts share it
    """
    v, names = _finite(values, names)
    if not len(v):
        return ""
    low, high = ends or (v.min(), v.max())
    y = value_axis(min(0.0, float(low)), max(0.0, float(high)), HEIGHT - BOTTOM, 34, unit)
    step = (WIDTH - LEFT - RIGHT) / len(v)
    width = max(step - min(2.0, step * 0.2), 0.4)
    base, mean = float(y.place(0.0)), float(y.place(float(v.mean())))
    body = grid(Axis(0, 1, LEFT, WIDTH - RIGHT, (), ()), y, x_label)
    for i, (value, at) in enumerate(zip(v, y.place(v), strict=True)):
        box = f'x="{LEFT + i * step:.1f}" y="{min(at, base):.1f}" width="{width:.2f}" height="{abs(at - base):.1f}"'
        body += _bar(box, i < marked, f"{names[i]}: {show(value, unit)}" if names else show(value, unit))
    body += f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{mean:.1f}" y2="{mean:.1f}"/>'
    body += f'<text class="tick" x="{LEFT + 6}" y="{mean - 5:.1f}">mean {show(float(v.mean()), unit)}</text>'
    return frame(title, body)


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
    """How many values lie where, in 30 bins; bins that hold only the worst tenth stand out.

    most  the fullest bin of the charts that share a scale
    """
    v, names = _finite(values, names)
    if not len(v):
        return ""
    count, edge = np.histogram(v, bins=BINS, range=ends)
    x = make_axis(edge[0], edge[-1], LEFT, WIDTH - RIGHT, unit, about=6)
    y = value_axis(0.0, float(most or count.max()), HEIGHT - BOTTOM, 34, "count")
    worst = np.quantile(v, [0.1, 0.9])
    place = np.clip(np.searchsorted(edge, v, side="right") - 1, 0, BINS - 1)
    body = grid(x, y, x_label)
    for i, (n, left, right) in enumerate(zip(count, edge[:-1], edge[1:], strict=True)):
        a, b, at = float(x.place(left)), float(x.place(right)), float(y.place(float(n)))
        box = f'x="{a:.1f}" y="{at:.1f}" width="{max(b - a - 1, 0.4):.1f}" height="{HEIGHT - BOTTOM - at:.1f}"'
        inside = [names[k] for k in np.flatnonzero(place == i)[:NAMED]] if names else []
        listed = f" ({', '.join(inside)}{', …' if n > NAMED else ''})" if inside else ""
        is_worst = bool(right <= worst[0] if low_is_worst else left >= worst[1])
        body += _bar(box, is_worst, f"{show(left, unit)} to {show(right, unit)}: {n}{listed}")
    return frame(title, body)


def _finite(values: Floats, names: Sequence[str]) -> tuple[Floats, Sequence[str]]:
    v = np.asarray(values, np.float64)
    known = np.isfinite(v)
    return v[known], [name for name, keep in zip(names, known, strict=True) if keep] if names else ()


def _bar(box: str, stands_out: bool, words: str) -> str:
    return f'<rect class="bar{" low" if stands_out else ""}" {box}><title>{text(words)}</title></rect>'
