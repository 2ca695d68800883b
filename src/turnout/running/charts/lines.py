"""Line charts with bands and marks, sparklines, and bars, as SVG. Colours come from charts.css.

A chart carries its points as JSON (`data-chart`), from which the page's script shows the values under the pointer; the
picture is complete without the script.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from turnout.running.charts import svg
from turnout.running.charts.axes import Axis, Floats, make_axis, value_axis
from turnout.running.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, path, style, switch, text
from turnout.running.charts.units import Unit, show

MOST_POINTS = 240
MOST_BARS = 200
_TRIANGLES = {"join": "M{x},{y}l-4,7h8Z", "leave": "M{x},{z}l-4,-7h8Z", "both": "M{x},{y}l-4,4l4,4l4,-4Z"}


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    name       in the legend and under the pointer
    x, y       the points
    colour     number of the style
    low, high  the edges of a band around the line
    of         numbers of the variants it belongs to, "0 2", by which a page hides it
    joined     whether points are joined; not where a value between two of them would mean nothing (a client's friend)
    """

    name: str
    x: Floats
    y: Floats
    colour: int = 0
    low: Floats | None = None
    high: Floats | None = None
    of: str = ""
    joined: bool = True


class Mark(NamedTuple):
    """An event at `x`, with words under the pointer.

    kind  "shift": a thin upright line; "join", "leave", "both": a small triangle on the axis
    """

    x: float
    words: str
    kind: str = "shift"


def line_chart(
    series: Sequence[Series],
    title: str,
    x_label: str = "round",
    unit: Unit = "number",
    x_unit: Unit = "number",
    log_x: bool = False,
    log_y: bool | None = None,
    marks: Sequence[Mark] = (),
    beside: Sequence[Series] = (),
) -> str:
    """Lines over a common axis, each with its band; an empty text for no data.

    log_y   logarithmic or not; by default where all values are positive and span more than three decades
    beside  lines of other charts that get the same scale
    """
    lines = _drawable(series, log_x)
    if not lines:
        return ""
    names, height = svg.legend([(s.name, s.colour, s.of) for s in lines]) if len(lines) > 1 else ("", 0)
    top = 40 + height
    xs = np.concatenate([s.x for s in lines])
    x_unit = "count" if x_unit == "number" and bool((xs == np.round(xs)).all()) else x_unit  # rounds have no halves
    low, high = _range([*lines, *_drawable(beside, log_x)], unit)
    x = make_axis(xs.min(), xs.max(), LEFT, WIDTH - RIGHT, x_unit, log_x, about=6)
    log_y = low > 0 and high / low > 1000 if log_y is None else log_y
    y = value_axis(low, high, HEIGHT - BOTTOM, top, unit, log_y)
    body = names + svg.grid(x, y, x_label) + "".join(_band(s, x, y) for s in lines)
    body += "".join(_line(s, x, y) for s in lines) + '<g class="cursor"></g>'
    here = [mark._replace(x=round(float(x.place(mark.x)), 1)) for mark in marks if x.low <= mark.x <= x.high]
    body += "".join(_mark(mark, top) for mark in here)
    points: dict[str, Any] = {"label": x_label, "rows": [_points(s, x, y, unit, x_unit) for s in lines]}
    points |= {"marks": [[mark.x, svg.printable(mark.words)] for mark in here]} if here else {}
    return svg.frame(title + (", log scale" if y.log else ""), body, json.dumps(points, separators=(",", ":")))


def spark(values: Floats, colour: int = 0) -> str:
    """A curve the size of a word."""
    v = np.asarray(values, np.float64)
    v = v[np.isfinite(v)]
    if len(v) < 2:
        return ""
    line = _thin(Series("", np.linspace(1, 79, len(v)), v))
    y = make_axis(float(line.y.min()), float(line.y.max()), 20, 2)
    picture = f'<path class="line s{colour % svg.COLOURS}" d="{path(line.x, y.place(line.y))}"/>'
    return f'<svg class="spark" viewBox="0 0 80 22" role="img" aria-label="curve">{picture}</svg>'


def bars(
    values: Floats,
    title: str,
    unit: Unit = "number",
    x_label: str = "",
    names: Sequence[str] = (),
    ends: tuple[float, float] | None = None,
    marks_worst: bool = False,
) -> str:
    """One bar per value in the order given, and a line at the mean; of many values, some that are spread evenly.

    names        of the values, under the pointer
    ends         the range of values, where several charts share it
    marks_worst  whether the first tenth stands out
    """
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return ""
    mean, (low, high) = float(values[known].mean()), ends or (values[known].min(), values[known].max())
    drawn = known[np.linspace(0, len(known) - 1, min(len(known), MOST_BARS)).round().astype(int)]
    y = value_axis(min(0.0, float(low)), max(0.0, float(high)), HEIGHT - BOTTOM, 34, unit)
    step = (WIDTH - LEFT - RIGHT) / len(drawn)
    width, marked = max(step - min(2.0, step * 0.2), 0.4), max(1, len(drawn) // 10) if marks_worst else 0
    base, middle = float(y.place(0.0)), float(y.place(mean))
    body = svg.grid(Axis(0, 1, LEFT, WIDTH - RIGHT, (), ()), y, x_label)
    for i, k in enumerate(drawn.tolist()):
        at, words = float(y.place(float(values[k]))), show(float(values[k]), unit)
        box = f'x="{LEFT + i * step:.1f}" y="{min(at, base):.1f}" width="{width:.2f}" height="{abs(at - base):.1f}"'
        name = text(f"{names[k]}: {words}" if names else words)
        body += f'<rect class="bar{" low" if i < marked else ""}" {box}><title>{name}</title></rect>'
    body += f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
    body += f'<text class="tick" x="{LEFT + 6}" y="{middle - 5:.1f}">mean {show(mean, unit)}</text>'
    return svg.frame(title, body)


def _drawable(series: Sequence[Series], log_x: bool) -> list[Series]:
    """Series with finite points only, and no more of them than a screen can show; empty ones are left out."""
    drawn = []
    for s in series:
        keep = np.isfinite(s.x) & np.isfinite(s.y) & ((s.x > 0) | (not log_x))
        low, high = (None if v is None else np.where(np.isfinite(v), v, s.y)[keep] for v in (s.low, s.high))
        drawn.append(_thin(replace(s, x=s.x[keep], y=s.y[keep], low=low, high=high)))
    return [s for s in drawn if len(s.x)]


def _thin(s: Series) -> Series:
    """Average neighbouring points where there are more than a screen can show; the ends stay."""
    if len(s.x) <= MOST_POINTS:
        return s
    group = np.linspace(0, MOST_POINTS, len(s.x), endpoint=False).astype(int)
    thin: dict[str, Any] = {}
    for name, v in (("x", s.x), ("y", s.y), ("low", s.low), ("high", s.high)):
        if v is not None:
            thin[name] = np.bincount(group, weights=v) / np.bincount(group)
            thin[name][[0, -1]] = v[[0, -1]]
    return replace(s, **thin)


def _range(lines: Sequence[Series], unit: Unit) -> tuple[float, float]:
    """The values to show, bands included; a band goes neither below 0 nor above 100 % where no mean does."""
    ys = np.concatenate([v for s in lines for v in (s.y, s.low, s.high) if v is not None])
    means = np.concatenate([s.y for s in lines])
    least = 0.0 if means.min() >= 0 else -np.inf
    most = 1.0 if unit == "percent" and means.max() <= 1 else np.inf
    return float(max(ys.min(), least)), float(min(ys.max(), most))


def _line(s: Series, x: Axis, y: Axis) -> str:
    xs, ys = x.place(s.x), y.place(s.y)
    if len(s.x) == 1:
        dot = f'class="dot {style(s.colour)}" cx="{xs[0]:.1f}" cy="{ys[0]:.1f}" r="3"'
        return f"<circle {dot}{switch(s.of)}><title>{text(s.name)}</title></circle>"
    drawn = path(xs, ys) if s.joined else "".join(f"M{a:.1f},{b:.1f}h.01" for a, b in zip(xs, ys, strict=True))
    line = f'class="line {"" if s.joined else "points "}{style(s.colour)}" d="{drawn}"{switch(s.of)}'
    return f"<path {line}><title>{text(s.name)}</title></path>"


def _band(s: Series, x: Axis, y: Axis) -> str:
    if s.low is None or s.high is None or len(s.x) < 2:
        return ""
    high, low = (y.place(np.clip(v, y.low, y.high)) for v in (s.high, s.low))
    xs = x.place(s.x)
    outline = path(np.concatenate([xs, xs[::-1]]), np.concatenate([high, low[::-1]]))
    return f'<path class="band {style(s.colour)}" d="{outline}Z"{switch(s.of)}/>'


def _mark(mark: Mark, top: float) -> str:
    """A thin line with an invisible wide one that is easier to point at, or a small triangle on the axis."""
    if mark.kind in _TRIANGLES:
        shape = _TRIANGLES[mark.kind].format(x=mark.x, y=HEIGHT - BOTTOM - 8, z=HEIGHT - BOTTOM)
        return f'<path class="member {mark.kind}" d="{shape}"><title>{text(mark.words)}</title></path>'
    ends = f'x1="{mark.x}" x2="{mark.x}" y1="{top}" y2="{HEIGHT - BOTTOM}"'
    return f'<g class="mark"><line {ends}/><title>{text(mark.words)}</title><line class="near" {ends}/></g>'


def _points(s: Series, x: Axis, y: Axis, unit: Unit, x_unit: Unit) -> dict[str, Any]:
    """A line as the script reads it: name, style, places in pixels, values and labels in words."""
    shown = [show(float(v), unit) for v in s.y]
    if s.low is not None and s.high is not None:
        shown = [f"{w} ± {show(float(d), unit)}" for w, d in zip(shown, (s.high - s.low) / 2, strict=True)]
    at = [show(float(v), x_unit) if x_unit not in ("number", "count") else f"{v:.0f}" for v in s.x]
    xs, ys = (np.round(axis.place(v), 1).tolist() for axis, v in ((x, s.x), (y, s.y)))
    row = {"n": s.name, "c": style(s.colour), "x": xs, "y": ys, "t": shown, "l": at}
    return row | ({"v": s.of} if s.of else {})
