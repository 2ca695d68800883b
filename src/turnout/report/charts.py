"""Charts as SVG text: lines with bands, bars, histograms, sparklines. Colours come from charts.css.

A chart carries its points as JSON (`data-chart`), from which the page's script shows the values under the pointer;
without the script the picture is complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.report.axes import Axis, Floats, make_axis, value_axis
from turnout.report.svg import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    frame,
    grid,
    legend,
    path,
    printable,
    style,
    text,
)
from turnout.report.units import Unit, show

MOST_POINTS = 240


@dataclass(frozen=True)
class Series:
    """One line: `y` at `x`, perhaps with a band from `low` to `high`; `colour` numbers the style."""

    name: str
    x: Floats
    y: Floats
    colour: int = 0
    low: Floats | None = None
    high: Floats | None = None


class Mark(NamedTuple):
    """Something that happened at `x`: a thin upright line, and words under the pointer."""

    x: float
    words: str


def line_chart(
    series: Sequence[Series],
    title: str,
    x_label: str = "round",
    unit: Unit = "number",
    x_unit: Unit = "number",
    log_x: bool = False,
    log_y: bool | None = None,
    marks: Sequence[Mark] = (),
) -> str:
    """Lines over a common axis, each with its band; nothing for no data.

    Without a word about `log_y`, a positive range of more than three decades (a loss that exploded) is logarithmic.
    """
    lines = [s for s in (_thin(_known(s, log_x)) for s in series) if len(s.x)]
    if not lines:
        return ""
    named = legend([(s.name, s.colour) for s in lines]) if len(lines) > 1 else ("", 0)
    top = 36 + named[1]
    xs = np.concatenate([s.x for s in lines])
    x_unit = "count" if x_unit == "number" and bool((xs == np.round(xs)).all()) else x_unit  # rounds have no halves
    ys = np.concatenate([v for s in lines for v in (s.y, s.low, s.high) if v is not None])
    limit = 1.0 if unit == "percent" and max(s.y.max() for s in lines) <= 1 else np.inf
    x = make_axis(xs.min(), xs.max(), LEFT, WIDTH - RIGHT, x_unit, log_x, about=6)
    log_y = bool(ys.min() > 0 and ys.max() / ys.min() > 1000) if log_y is None else log_y
    y = value_axis(float(ys.min()), float(min(ys.max(), limit)), HEIGHT - BOTTOM, top, unit, log_y)
    body = named[0] + grid(x, y, x_label) + "".join(_band(s, x, y) for s in lines)
    body += "".join(_line(s, x, y) for s in lines) + '<g class="cursor"></g>'
    here = [(round(float(x.place(mark.x)), 1), mark.words) for mark in marks if x.low <= mark.x <= x.high]
    body += "".join(_mark(at, words, top) for at, words in here)
    return frame(title + (", log scale" if y.log else ""), body, _points(lines, x, y, x_label, unit, x_unit, here))


def bars(values: Floats, title: str, marked: int = 0, unit: Unit = "number", x_label: str = "") -> str:
    """One bar per value in the order given; the first `marked` stand out, a line shows the mean."""
    v = np.asarray(values, np.float64)
    v = v[np.isfinite(v)]
    if not len(v):
        return ""
    y = value_axis(min(0.0, v.min()), max(0.0, v.max()), HEIGHT - BOTTOM, 34, unit)
    step = (WIDTH - LEFT - RIGHT) / len(v)
    width = max(step - min(2.0, step * 0.2), 0.4)
    base = float(y.place(0.0))
    parts = []
    for i, (value, at) in enumerate(zip(v, y.place(v), strict=True)):
        kind = "bar low" if i < marked else "bar"
        box = f'x="{LEFT + i * step:.1f}" y="{min(at, base):.1f}" width="{width:.2f}" height="{abs(at - base):.1f}"'
        parts.append(f'<rect class="{kind}" {box}><title>{show(value, unit)}</title></rect>')
    x = Axis(0, 1, LEFT, WIDTH - RIGHT, (), ())
    return frame(title, grid(x, y, x_label) + "".join(parts) + _mean_line(float(v.mean()), y, unit))


def histogram(
    values: Floats,
    title: str,
    unit: Unit = "number",
    x_label: str = "",
    ends: tuple[float, float] | None = None,
    low_is_worst: bool = True,
) -> str:
    """How many values lie where, in 30 bins; those that hold only the worst tenth stand out."""
    v = np.asarray(values, np.float64)
    v = v[np.isfinite(v)]
    if not len(v):
        return ""
    count, edge = np.histogram(v, bins=30, range=ends)
    x = make_axis(edge[0], edge[-1], LEFT, WIDTH - RIGHT, unit, about=6)
    y = value_axis(0.0, float(count.max()), HEIGHT - BOTTOM, 34, "count")
    edges = np.quantile(v, [0.1, 0.9])
    parts = []
    for n, left, right in zip(count, edge[:-1], edge[1:], strict=True):
        a, b, at = float(x.place(left)), float(x.place(right)), float(y.place(float(n)))
        kind = "bar low" if (right <= edges[0] if low_is_worst else left >= edges[1]) else "bar"
        box = f'x="{a:.1f}" y="{at:.1f}" width="{max(b - a - 1, 0.4):.1f}" height="{HEIGHT - BOTTOM - at:.1f}"'
        words = f"{show(left, unit)} to {show(right, unit)}: {n}"
        parts.append(f'<rect class="{kind}" {box}><title>{words}</title></rect>')
    return frame(title, grid(x, y, x_label) + "".join(parts))


def spark(values: Floats, colour: int = 0) -> str:
    """A curve the size of a word."""
    v = np.asarray(values, np.float64)
    v = v[np.isfinite(v)]
    if len(v) < 2:
        return ""
    y = make_axis(float(v.min()), float(v.max()), 20, 2)
    xs = np.linspace(1, 79, len(v))
    picture = f'<path class="line s{colour % COLOURS}" d="{path(xs, y.place(v))}"/>'
    return f'<svg class="spark" viewBox="0 0 80 22" role="img" aria-label="curve">{picture}</svg>'


def _known(s: Series, log_x: bool) -> Series:
    """Only the points that can be drawn."""
    keep = np.isfinite(s.x) & np.isfinite(s.y) & ((s.x > 0) | (not log_x))
    band = [None if v is None else np.where(np.isfinite(v), v, s.y)[keep] for v in (s.low, s.high)]
    return Series(s.name, s.x[keep], s.y[keep], s.colour, *band)


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
    return Series(s.name, x, y, s.colour, mean(s.low), mean(s.high))


def _line(s: Series, x: Axis, y: Axis) -> str:
    xs, ys = x.place(s.x), y.place(s.y)
    if len(s.x) == 1:
        dot = f'class="dot {style(s.colour)}" cx="{xs[0]:.1f}" cy="{ys[0]:.1f}" r="3"'
        return f"<circle {dot}><title>{text(s.name)}</title></circle>"
    return f'<path class="line {style(s.colour)}" d="{path(xs, ys)}"><title>{text(s.name)}</title></path>'


def _band(s: Series, x: Axis, y: Axis) -> str:
    if s.low is None or s.high is None or len(s.x) < 2:
        return ""
    edge = [y.place(np.clip(v, y.low, y.high)) for v in (s.high, s.low)]
    xs = x.place(s.x)
    outline = path(np.concatenate([xs, xs[::-1]]), np.concatenate([edge[0], edge[1][::-1]]))
    return f'<path class="band {style(s.colour)}" d="{outline}Z"/>'


def _mark(at: float, words: str, top: float) -> str:
    """A thin line, and an unseen wide one beside it that is easier to point at."""
    ends = f'x1="{at}" x2="{at}" y1="{top}" y2="{HEIGHT - BOTTOM}"'
    return f'<g class="mark"><line {ends}/><title>{text(words)}</title><line class="near" {ends}/></g>'


def _mean_line(mean: float, y: Axis, unit: Unit) -> str:
    at = float(y.place(mean))
    line = f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return line + f'<text class="tick" x="{LEFT + 6}" y="{at - 5:.1f}">mean {show(mean, unit)}</text>'


def _points(
    lines: Sequence[Series],
    x: Axis,
    y: Axis,
    x_label: str,
    unit: Unit,
    x_unit: Unit,
    marks: Sequence[tuple[float, str]] = (),
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
        rows.append({"n": s.name, "c": style(s.colour), "x": places[0], "y": places[1], "t": shown, "l": at})
    noted = {"marks": [[at, printable(words)] for at, words in marks]} if marks else {}
    return json.dumps({"label": x_label, "rows": rows, **noted}, separators=(",", ":"))
