"""The pieces of every chart: frame, grid, legend, line styles; and several charts as one picture."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np

from turnout.running.charts.axes import Axis, Floats

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, BOTTOM = 58, 20, 42
COLOURS = 8
DASHES = 5  # for each colour: 40 lines look different


def printable(words: object) -> str:
    """Text without the characters that neither HTML nor XML can hold."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]", "\ufffd", str(words))


def text(words: object) -> str:
    """Text that is safe in SVG."""
    return html.escape(printable(words))


@cache
def packaged(name: str) -> str:
    """A text file of this package."""
    return resources.files("turnout.running.charts").joinpath(name).read_text(encoding="utf-8")


def frame(title: str, body: str, points: str = "") -> str:
    """A chart under its title; `points` are for the page's script, whose arrow keys go through them."""
    data = f' tabindex="0" data-chart="{html.escape(points)}"' if points else ""
    head = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}"{data}'
    return f'<svg class="chart" {head}><text class="title" x="8" y="18">{text(title)}</text>{body}</svg>'


def sheet(pictures: Sequence[str], css: str | None = None, attributes: str = "") -> str:
    """Charts two by two as one SVG document with its own style sheet (default: charts.css)."""
    drawn = [picture for picture in pictures if picture]
    across, down = min(len(drawn), 2), (len(drawn) + 1) // 2
    body = ""
    for i, picture in enumerate(drawn):
        place = f'x="{i % 2 * WIDTH}" y="{i // 2 * HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        body += picture.replace("<svg ", f"<svg {place} ", 1)
    body = re.sub(r' (data-chart|data-v|tabindex)="[^"]*"', "", body)  # a picture has no script to read them
    head = f'xmlns="http://www.w3.org/2000/svg" {attributes}viewBox="0 0 {across * WIDTH} {down * HEIGHT}"'
    css = packaged("charts.css") if css is None else css
    paper = '<rect class="paper" width="100%" height="100%"/>'
    return f"<svg {head}><style>\n{css}</style>{paper}{body}</svg>\n"


def grid(x: Axis, y: Axis, x_label: str) -> str:
    """The ticks of both axes with their labels."""
    parts, right, bottom = [], WIDTH - RIGHT, HEIGHT - BOTTOM
    for at, words in zip(y.place(np.array(y.ticks)), y.labels, strict=True):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{words}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    for at, words in zip(x.place(np.array(x.ticks)), x.labels, strict=True):
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{words}</text>')
    middle = f'x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle"'
    return "".join([*parts, f'<text class="label" {middle}>{text(x_label)}</text>'])


def legend(lines: Sequence[tuple[str, int, str]]) -> tuple[str, int]:
    """(name, colour, variants) of each line, laid out in rows; and the height of the rows."""
    parts, x, row = [], 8.0, 0
    for name, colour, of in lines:
        short = name if len(name) <= 40 else name[:39] + "…"
        width = 44 + 8 * len(short)  # a phone has larger letters
        if x > 8 and x + width > WIDTH:
            x, row = 8.0, row + 1
        y = 38 + 18 * row
        line = f'<path class="line key {style(colour)}" d="M{x:.0f},{y}h24"/>'
        parts.append(f'<g{switch(of)}>{line}<text class="name" x="{x + 29:.0f}" y="{y + 4}">{text(short)}</text></g>')
        x += width
    return "".join(parts), 18 * (row + 1) + 8


def switch(of: str) -> str:
    """The attribute by which a page's script shows and hides what belongs to the variants with these numbers."""
    return f' data-v="{of}"' if of else ""


def sample(colour: int) -> str:
    """A short piece of a variant's line, to stand beside its name."""
    line = f'<path class="line key {style(colour)}" d="M2,6h22"/>'
    return f'<svg class="sample" viewBox="0 0 26 12" aria-hidden="true">{line}</svg>'


def path(xs: Floats, ys: Floats) -> str:
    """Points joined by straight lines, as the `d` of an SVG path."""
    return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(xs, ys, strict=True))


def style(colour: int) -> str:
    """A colour, and a dash once the colours are used up.

    >>> style(3), style(8), style(40)
    ('s3', 's0 d1', 's0')
    """
    dash = colour // COLOURS % DASHES
    return f"s{colour % COLOURS}" + (f" d{dash}" if dash else "")
