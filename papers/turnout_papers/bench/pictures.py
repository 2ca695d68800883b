"""Pictures of the benchmark: a heat map of methods over worlds, and mean ranks with their critical difference.

Ranks are within a world (data set and turnout), 1 for the best; equal ones share their mean rank. Two methods whose
mean ranks differ by less than the critical difference of Nemenyi's test are not told apart (Demšar, 2006).

Shape letters: M methods, N worlds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.running.charts.svg import text

# Critical values of the studentised range at 5 %, divided by √2, for 2, 3, ... methods.
NEMENYI = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164, 3.219, 3.268, 3.313, 3.354, 3.391)
STYLE = (
    "<style>text{font:11px system-ui,sans-serif;fill:#222}.head{font-size:13px;font-weight:600}.small{font-size:10px}"
    ".faint{fill:#666}line,path{stroke:#222;fill:none}rect{stroke:#fff;stroke-width:1}</style>"
)


@dataclass(frozen=True, eq=False)
class Standings:
    """Every method in every world.

    methods   their names
    worlds    as (data set, turnout)
    value_MN  what is compared, higher is better; -∞ where runs diverged
    """

    methods: Sequence[str]
    worlds: Sequence[tuple[str, str]]
    value_MN: NDArray[np.float64]

    @property
    def rank_MN(self) -> NDArray[np.float64]:
        """1 for the best method of a world; equal ones share their mean rank.

        >>> Standings("ab", [("d", "t")], np.array([[1.0], [1.0]])).rank_MN.tolist()
        [[1.5], [1.5]]
        """
        more = (self.value_MN[None] > self.value_MN[:, None]).sum(1)
        same = (self.value_MN[None] == self.value_MN[:, None]).sum(1)
        return np.asarray(more + (same + 1) / 2, np.float64)

    @property
    def mean_rank_M(self) -> NDArray[np.float64]:
        return np.asarray(self.rank_MN.mean(1), np.float64)

    @property
    def critical(self) -> float:
        """The critical difference of mean ranks at 5 %: q √(M (M + 1) / 6 N)."""
        count = len(self.methods)
        return NEMENYI[count - 2] * math.sqrt(count * (count + 1) / (6 * len(self.worlds)))

    @property
    def behind_MN(self) -> NDArray[np.float64]:
        """How far each method is behind the best one of the world."""
        return np.asarray(self.value_MN.max(0) - self.value_MN, np.float64)


def heat_map(found: Standings, title: str) -> str:
    """Methods down by mean rank, worlds across; a cell says how many points it is behind the best of its world."""
    order = found.mean_rank_M.argsort(kind="stable")
    left, top, wide, high = 130, 110, 34, 22
    parts = [f'<text class="head" x="8" y="20">{text(title)}</text>']
    for n, (data, turnout) in enumerate(found.worlds):
        x = left + n * wide + wide / 2
        parts.append(
            f'<text class="small" transform="translate({x + 4:.0f} {top - 8}) rotate(-60)">{text(turnout)}</text>'
        )
        if n == 0 or found.worlds[n - 1][0] != data:
            parts.append(f'<text x="{left + n * wide + 2}" y="{top + len(order) * high + 18}">{text(data)}</text>')
            parts.append(
                f'<line x1="{left + n * wide}" x2="{left + n * wide}" y1="{top}" y2="{top + len(order) * high + 20}"/>'
            )
    for m, method in enumerate(order):
        y = top + m * high
        parts.append(f'<text x="{left - 6}" y="{y + 15}" text-anchor="end">{text(found.methods[method])}</text>')
        for n in range(len(found.worlds)):
            gap = float(found.behind_MN[method, n])
            words = "div." if math.isinf(gap) else f"{gap:.1f}" if gap < 9.95 else f"{gap:.0f}"
            dark = 1.0 if math.isinf(gap) else min(1.0, math.log1p(gap) / math.log1p(30))
            shade = "#" + "".join(f"{round(a + (b - a) * dark):02x}" for a, b in ((237, 165), (248, 15), (233, 21)))
            ink = ' style="fill:#fff"' if dark > 0.6 else ""
            x = left + n * wide
            parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{shade}"/>')
            parts.append(
                f'<text class="small" x="{x + wide / 2}" y="{y + 15}" text-anchor="middle"{ink}>{words}</text>'
            )
    width, height = left + len(found.worlds) * wide + 20, top + len(order) * high + 50
    note = "points behind the best method of the world (0.0: the best); methods by mean rank, best first"
    parts.append(f'<text class="small faint" x="{left}" y="{height - 10}">{note}</text>')
    return _document(width, height, title, parts)


def critical_difference(found: Standings, title: str) -> str:
    """Mean ranks on a line, the best at the left; bars join methods that are not told apart."""
    rank_M, count = found.mean_rank_M, len(found.methods)
    order = rank_M.argsort(kind="stable")
    left, right, axis, width = 150, 590, 92, 740
    low, high = math.floor(rank_M.min()), math.ceil(rank_M.max())

    def at(rank: float) -> float:
        return left + (rank - low) / max(1, high - low) * (right - left)

    groups = _joined(rank_M[order], found.critical)
    half = (count + 1) // 2
    below = axis + 14 + 9 * len(groups)
    height = below + 20 * half + 20
    parts = [f'<text class="head" x="8" y="20">{text(title)}</text>', f'<path d="M{left} {axis}H{right}"/>']
    for rank in range(low, high + 1):
        parts.append(f'<path d="M{at(rank):.1f} {axis}v-6"/>')
        parts.append(f'<text x="{at(rank):.1f}" y="{axis - 10}" text-anchor="middle">{rank}</text>')
    reach = at(low + found.critical) - at(low)
    parts.append(f'<path d="M{left} 48h{reach:.1f}M{left} 44v8M{left + reach:.1f} 44v8"/>')
    words = f"critical difference {found.critical:.2f} (Nemenyi, 5 %, {len(found.worlds)} worlds)"
    parts.append(f'<text class="small" x="{left}" y="40">{words}</text>')
    for i, (first, last) in enumerate(groups):
        y = axis + 8 + 9 * i
        ends = at(rank_M[order[first]]) - 3, at(rank_M[order[last]]) + 3
        parts.append(f'<path stroke-width="3" d="M{ends[0]:.1f} {y}H{ends[1]:.1f}"/>')
    for place, method in enumerate(order):
        at_left = place < half
        y = below + 20 * (place if at_left else count - 1 - place) + 10
        x = at(rank_M[method])
        parts.append(f'<path stroke-width="0.7" d="M{x:.1f} {axis}V{y}H{left - 8 if at_left else right + 8}"/>')
        label = f"{found.methods[method]} {rank_M[method]:.1f}"
        anchor = "end" if at_left else "start"
        parts.append(
            f'<text x="{left - 12 if at_left else right + 12}" y="{y + 4}" text-anchor="{anchor}">{text(label)}</text>'
        )
    return _document(width, height, title, parts)


def _joined(sorted_M: NDArray[np.float64], reach: float) -> list[tuple[int, int]]:
    """The widest runs of methods, by place, whose mean ranks are within `reach`; those within another are left out.

    >>> _joined(np.array([1.0, 2.0, 4.0, 4.5]), 2.2)
    [(0, 1), (1, 2), (2, 3)]
    """
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(sorted_M):
        last = int(np.searchsorted(sorted_M, rank + reach, side="right")) - 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def _document(width: float, height: float, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"'
    body = f'{STYLE}<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}'
    return f'{head} aria-label="{text(title)}">{body}</svg>\n'
