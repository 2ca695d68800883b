"""Curves as text for a terminal: one in braille dots, several each with its own mark.

Shape letters: X columns of dots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.text import Text

from turnout.running.charts.axes import Axis, Floats, make_axis, value_axis
from turnout.running.charts.lines import Series
from turnout.running.charts.units import Unit

MARKS = "●○▲△■□◆◇"
COLOURS = ("blue", "red", "green", "magenta", "yellow", "cyan", "white", "bright_blue")
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille cell: rows of two


def text_plot(
    series: Sequence[Series], title: str, unit: Unit = "number", width: int = 72, height: int = 12, over: str = ""
) -> Text:
    """Lines over a common axis, `width` letters wide with the labels; only the title for no data.

    >>> steps = np.arange(4.0)
    >>> print(text_plot([Series("a", steps, steps)], "Up", width=14, height=3, over="the round").plain)
    Up over the round
    3 ┤       ⢀⡠⠔⠊
    2 ┤   ⢀⡠⠔⠊⠁
    0 ┤⡠⠔⠊⠁
      └┬──────┬───
       0      2
    """
    found = Text(title, style="bold").append(f" over {over}" if over else "", style="not bold dim")
    known = [(s, np.isfinite(s.x) & np.isfinite(s.y)) for s in series]
    lines = [Series(s.name, s.x[keep], s.y[keep], s.colour) for s, keep in known if keep.any()]
    if not lines:
        return found.append("\nnothing measured yet", style="not bold dim")
    ys, xs = (np.concatenate([getattr(s, axis) for s in lines]) for axis in "yx")
    y = value_axis(float(ys.min()), float(ys.max()), 4 * height - 1, 0, unit)
    labels = dict(zip((np.round(y.place(np.array(y.ticks))) // 4).astype(int).tolist(), y.labels, strict=True))
    margin = max(map(len, labels.values()))
    across = max(width - margin - 2, 8)
    x = make_axis(float(xs.min()), float(xs.max()), 0, 2 * across - 1, "count", about=max(2, across // 14))
    rows = _braille(lines[0], x, y, across, height) if len(lines) == 1 else _marked(lines, x, y, across, height)
    for i, row in enumerate(rows):
        label = labels.get(i, "")
        found.append(f"\n{label:>{margin}} {'┤' if label else '│'}", style="not bold dim").append_text(row)
    return found.append(_below(x, margin, across), style="not bold dim")


def legend(names: Sequence[str]) -> Text:
    """The mark of each line, in the order drawn."""
    words = [Text(f"{mark_of(i)} {name}", style=COLOURS[i % len(COLOURS)]) for i, name in enumerate(names)]
    return Text("   ").join(words)


def mark_of(number: int) -> str:
    """The mark of a line; once the colours are used up, another mark for each of them.

    >>> "".join(map(mark_of, (0, 1, 8, 9)))
    '●○○▲'
    """
    return MARKS[(number + number // len(COLOURS)) % len(MARKS)]


def _places(s: Series, x: Axis, y: Axis, columns: int, step: int) -> tuple[Floats, Floats]:
    """The columns of dots that a line crosses, and its height in each."""
    at_X = np.arange(0, columns * step, step)
    values_X = x.low + at_X / max(x.end, 1) * (x.high - x.low)
    inside = (values_X >= s.x[0] - 1e-9) & (values_X <= s.x[-1] + 1e-9)
    if not inside.any():  # a single point between two columns
        inside[int(np.abs(values_X - s.x[0]).argmin())] = True
    return at_X[inside], np.round(y.place(np.interp(values_X[inside], s.x, s.y)))


def _braille(s: Series, x: Axis, y: Axis, across: int, height: int) -> list[Text]:
    """A line of dots, two across and four down a letter; steep parts are joined."""
    cells = np.zeros((height, across), np.int64)
    at_X, row_X = _places(s, x, y, 2 * across, 1)
    before = int(row_X[0])
    for column, row in zip(at_X.astype(int).tolist(), row_X.astype(int).tolist(), strict=True):
        step = 1 if row >= before else -1
        for dot in range(before + (step if row != before else 0), row + step, step):
            cells[dot // 4, column // 2] |= _DOTS[dot % 4][column % 2]
        before = row
    colour = COLOURS[s.colour % len(COLOURS)]
    return [Text("".join(chr(0x2800 + c) if c else " " for c in row).rstrip(), style=colour) for row in cells.tolist()]


def _marked(lines: Sequence[Series], x: Axis, y: Axis, across: int, height: int) -> list[Text]:
    """A mark a letter; where lines meet, the first is on top."""
    cells = np.full((height, across), -1)
    for i in reversed(range(len(lines))):
        at_X, row_X = _places(lines[i], x, y, across, 2)
        cells[(row_X // 4).astype(int), (at_X // 2).astype(int)] = i
    rows = []
    for row in cells.tolist():
        rows.append(Text())
        for i in row:
            rows[-1].append(" " if i < 0 else mark_of(i), style="" if i < 0 else COLOURS[i % len(COLOURS)])
        rows[-1].rstrip()
    return rows


def _below(x: Axis, margin: int, across: int) -> str:
    """The axis under the lines, with its numbers."""
    numbers, ticks = [" "] * across, ["─"] * across
    for at, words in zip((x.place(np.array(x.ticks)) // 2).astype(int).tolist(), x.labels, strict=True):
        start = max(0, min(at - len(words) // 2, across - len(words)))
        if at < across and all(letter == " " for letter in numbers[max(0, start - 1) : start + len(words) + 1]):
            ticks[at] = "┬"
            numbers[start : start + len(words)] = words
    return f"\n{'':>{margin}} └{''.join(ticks)}\n{'':>{margin}}  {''.join(numbers)}".rstrip()
