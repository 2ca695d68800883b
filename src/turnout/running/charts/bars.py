"""One value per client as SVG: bars from worst to best, or a histogram; names of clients under the pointer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnout.running.charts.axes import Axis, Floats, make_axis, value_axis
from turnout.running.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, frame, grid, text
from turnout.running.charts.units import Unit, show

BINS = 30


def bars(
    values: Floats,
    title: str,
    marked: int = 0,
    unit: Unit = "number",
    x_label: str = "",
    names: Sequence[str] = (),
    ends: tuple[float, float] | None = None,
) -> str:
    """One bar per value in the order given, and a line at the mean.

    marked  the first so many stand out
    names   of the clients
    ends    the range of values, where several charts share it
    """
    known = np.isfinite(values)
    values, names = values[known], [name for name, keep in zip(names, known, strict=False) if keep]
    if not len(values):
        return ""
    low, high = ends or (values.min(), values.max())
    y = value_axis(min(0.0, float(low)), max(0.0, float(high)), HEIGHT - BOTTOM, 34, unit)
    step = (WIDTH - LEFT - RIGHT) / len(values)
    width = max(step - min(2.0, step * 0.2), 0.4)
    base, mean = float(y.place(0.0)), float(y.place(float(values.mean())))
    body = grid(Axis(0, 1, LEFT, WIDTH - RIGHT, (), ()), y, x_label)
    for i, (value, at) in enumerate(zip(values, y.place(values), strict=True)):
        box = f'x="{LEFT + i * step:.1f}" y="{min(at, base):.1f}" width="{width:.2f}" height="{abs(at - base):.1f}"'
        body += _bar(box, f"{names[i]}: {show(value, unit)}" if names else show(value, unit), i < marked)
    body += f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{mean:.1f}" y2="{mean:.1f}"/>'
    body += f'<text class="tick" x="{LEFT + 6}" y="{mean - 5:.1f}">mean {show(float(values.mean()), unit)}</text>'
    return frame(title, body)


def histogram(
    values: Floats, title: str, unit: Unit = "number", x_label: str = "", ends: tuple[float, float] | None = None
) -> str:
    """How many values lie where, in 30 bins."""
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    count, edge = np.histogram(values, bins=BINS, range=ends)
    x = make_axis(edge[0], edge[-1], LEFT, WIDTH - RIGHT, unit, about=6)
    y = value_axis(0.0, float(count.max()), HEIGHT - BOTTOM, 34, "count")
    body = grid(x, y, x_label)
    for n, left, right in zip(count, edge[:-1], edge[1:], strict=True):
        a, b, at = float(x.place(left)), float(x.place(right)), float(y.place(float(n)))
        box = f'x="{a:.1f}" y="{at:.1f}" width="{max(b - a - 1, 0.4):.1f}" height="{HEIGHT - BOTTOM - at:.1f}"'
        body += _bar(box, f"{show(left, unit)} to {show(right, unit)}: {n}")
    return frame(title, body)


def _bar(box: str, words: str, stands_out: bool = False) -> str:
    return f'<rect class="bar{" low" if stands_out else ""}" {box}><title>{text(words)}</title></rect>'
