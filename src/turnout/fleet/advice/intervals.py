"""A picture of the ranking: every candidate's difference to the leader as a point on its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turnout.fleet.advice.advice import Row
from turnout.running.charts.axes import make_axis
from turnout.running.charts.svg import HEIGHT, RIGHT, WIDTH, frame, text

NAMES, TOP, BOTTOM = 150, 40, 34  # room for names, the title, the axis
MOST = 16  # rows that fit


def interval_chart(rows: Sequence[Row], title: str, shown: Callable[[float], str]) -> str:
    """A line for each candidate, from one end of its interval to the other; nothing where no two were compared."""
    known = [row for row in rows if row.low is not None and row.high is not None][:MOST]
    if not known:
        return ""
    ends = [v for row in known for v in (row.low, row.high) if v is not None]
    axis = make_axis(min([*ends, 0.0]), max([*ends, 0.0]), NAMES, WIDTH - RIGHT)
    step, bottom = (HEIGHT - TOP - BOTTOM) / len(known), HEIGHT - BOTTOM
    zero = float(axis.place(0.0))
    parts = [f'<line class="mean" x1="{zero:.1f}" x2="{zero:.1f}" y1="{TOP - 8}" y2="{bottom}"/>']
    for at, value in zip(axis.place(np.array(axis.ticks)), axis.ticks, strict=True):
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{text(shown(value))}</text>'
        )
    parts += [_line(row, TOP + (i + 0.5) * step, axis.place) for i, row in enumerate(known)]
    return frame(title, "".join(parts))


def _line(row: Row, y: float, place: Callable[[float], object]) -> str:
    low, high, gap = (float(str(place(v or 0.0))) for v in (row.low, row.high, row.number))
    colour = "s1" if "behind" in row.state else "s0"
    name = f'<text class="name" x="{NAMES - 8}" y="{y + 4:.1f}" text-anchor="end">{text(row.name[:22])}</text>'
    line = f'<path class="line {colour}" d="M{low:.1f},{y:.1f}H{high:.1f}"/>'
    return name + line + f'<circle class="dot {colour}" cx="{gap:.1f}" cy="{y:.1f}" r="4"/>'
