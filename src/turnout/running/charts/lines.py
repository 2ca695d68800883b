"""Charts as SVG text: lines with bands, and sparklines. Colours come from charts.css.

A chart carries its points as JSON (`data-chart`), from which the page's script shows the values under the pointer;
without the script the picture is complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from turnout.running.charts.axes import Axis, Floats, make_axis, value_axis
from turnout.running.charts.svg import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Named,
    frame,
    grid,
    legend,
    path,
    printable,
    style,
    switch,
    text,
)
from turnout.running.charts.units import Unit, show

MOST_POINTS = 240


@dataclass(frozen=True)
class Series:
    """One line: `y` at `x`, perhaps with a band from `low` to `high`; `colour` numbers the style.

    Not `joined`, it is points: what is between two of them means nothing, a client's friends for instance.
    """

    name: str
    x: Floats
    y: Floats
    colour: int = 0
    low: Floats | None = None
    high: Floats | None = None
    of: str = ""  # the numbers of the variants it stands for, "0 2": a page can switch it off with them
    joined: bool = True


class Mark(NamedTuple):
    """Something that happened at `x`, with words under the pointer.

    kind  "shift": a thin upright line; "join", "leave": a small triangle on the axis, up or down; "both"
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
    """Lines over a common axis, each with its band; nothing for no data.

    Without a word about `log_y`, a positive range of more than three decades (a loss that exploded) is logarithmic.
    `beside`: the lines of charts that this one is compared with, which then have the same scale.
    """
    lines = [s for s in (_thin(_known(s, log_x)) for s in series) if len(s.x)]
    if not lines:
        return ""
    named = legend([Named(s.name, s.colour, s.of) for s in lines]) if len(lines) > 1 else ("", 0)
    top = 40 + named[1]
    xs = np.concatenate([s.x for s in lines])
    x_unit = "count" if x_unit == "number" and bool((xs == np.round(xs)).all()) else x_unit  # rounds have no halves
    low, high = _range([*lines, *(s for s in map(_thin, (_known(s, log_x) for s in beside)) if len(s.x))], unit)
    x = make_axis(xs.min(), xs.max(), LEFT, WIDTH - RIGHT, x_unit, log_x, about=6)
    log_y = low > 0 and high / low > 1000 if log_y is None else log_y
    y = value_axis(low, high, HEIGHT - BOTTOM, top, unit, log_y)
    body = named[0] + grid(x, y, x_label) + "".join(_band(s, x, y) for s in lines)
    body += "".join(_line(s, x, y) for s in lines) + '<g class="cursor"></g>'
    here = [mark._replace(x=round(float(x.place(mark.x)), 1)) for mark in marks if x.low <= mark.x <= x.high]
    body += "".join(_mark(mark, top) for mark in here)
    return frame(title + (", log scale" if y.log else ""), body, _points(lines, x, y, x_label, unit, x_unit, here))


def _range(lines: Sequence[Series], unit: Unit) -> tuple[float, float]:
    """The values to be shown, bands included; a band goes neither below 0 nor above 100 % where no mean does."""
    ys = np.concatenate([v for s in lines for v in (s.y, s.low, s.high) if v is not None])
    means = np.concatenate([s.y for s in lines])
    least = 0.0 if means.min() >= 0 else -np.inf
    most = 1.0 if unit == "percent" and means.max() <= 1 else np.inf
    return float(max(ys.min(), least)), float(min(ys.max(), most))


def spark(values: Floats, colour: int = 0) -> str:
    """A curve the size of a word."""
    v = np.asarray(values, np.float64)
    v = v[np.isfinite(v)]
    if len(v) < 2:
        return ""
    line = _thin(Series("", np.linspace(1, 79, len(v)), v))
    y = make_axis(float(line.y.min()), float(line.y.max()), 20, 2)
    picture = f'<path class="line s{colour % COLOURS}" d="{path(line.x, y.place(line.y))}"/>'
    return f'<svg class="spark" viewBox="0 0 80 22" role="img" aria-label="curve">{picture}</svg>'


def _known(s: Series, log_x: bool) -> Series:
    """Only the points that can be drawn."""
    keep = np.isfinite(s.x) & np.isfinite(s.y) & ((s.x > 0) | (not log_x))
    low, high = (None if v is None else np.where(np.isfinite(v), v, s.y)[keep] for v in (s.low, s.high))
    return replace(s, x=s.x[keep], y=s.y[keep], low=low, high=high)


def _thin(s: Series) -> Series:
    """Neighbouring points averaged where there are more than a screen can show; the ends stay."""
    if len(s.x) <= MOST_POINTS:
        return s
    group = np.linspace(0, MOST_POINTS, len(s.x), endpoint=False).astype(int)
    count = np.bincount(group)

    def mean(v: Floats | None) -> Floats | None:
        if v is None:
            return None
        thin = np.bincount(group, weights=v) / count
        thin[0], thin[-1] = v[0], v[-1]
        return thin

    x, y = mean(s.x), mean(s.y)
    assert x is not None
    assert y is not None
    return replace(s, x=x, y=y, low=mean(s.low), high=mean(s.high))


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
    edge = [y.place(np.clip(v, y.low, y.high)) for v in (s.high, s.low)]
    xs = x.place(s.x)
    outline = path(np.concatenate([xs, xs[::-1]]), np.concatenate([edge[0], edge[1][::-1]]))
    return f'<path class="band {style(s.colour)}" d="{outline}Z"{switch(s.of)}/>'


_TRIANGLES = {"join": "M{x},{y}l-4,7h8Z", "leave": "M{x},{z}l-4,-7h8Z", "both": "M{x},{y}l-4,4l4,4l4,-4Z"}


def _mark(mark: Mark, top: float) -> str:
    """A thin line with an unseen wide one that is easier to point at, or a small triangle on the axis."""
    if mark.kind in _TRIANGLES:
        shape = _TRIANGLES[mark.kind].format(x=mark.x, y=HEIGHT - BOTTOM - 8, z=HEIGHT - BOTTOM)
        return f'<path class="member {mark.kind}" d="{shape}"><title>{text(mark.words)}</title></path>'
    ends = f'x1="{mark.x}" x2="{mark.x}" y1="{top}" y2="{HEIGHT - BOTTOM}"'
    return f'<g class="mark"><line {ends}/><title>{text(mark.words)}</title><line class="near" {ends}/></g>'


def _points(
    lines: Sequence[Series],
    x: Axis,
    y: Axis,
    x_label: str,
    unit: Unit,
    x_unit: Unit,
    marks: Sequence[Mark] = (),
) -> str:
    """What the script shows under the pointer."""
    rows = []
    for s in lines:
        deviation = [None if s.high is None or s.low is None else (s.high - s.low) / 2]
        shown = [show(float(v), unit) for v in s.y]
        if deviation[0] is not None:
            shown = [f"{w} ± {show(float(d), unit)}" for w, d in zip(shown, deviation[0], strict=True)]
        at = [show(float(v), x_unit) if x_unit not in ("number", "count") else f"{v:.0f}" for v in s.x]
        places = [np.round(axis.place(v), 1).tolist() for axis, v in ((x, s.x), (y, s.y))]
        row = {"n": s.name, "c": style(s.colour), "x": places[0], "y": places[1], "t": shown, "l": at}
        rows.append(row | ({"v": s.of} if s.of else {}))
    noted = {"marks": [[mark.x, printable(mark.words)] for mark in marks]} if marks else {}
    return json.dumps({"label": x_label, "rows": rows, **noted}, separators=(",", ":"))
