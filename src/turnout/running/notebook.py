"""Progress in a notebook: the lines so far and the bars below them, as one output that is updated in place.

rich would need ipywidgets for this, which many notebooks lack. IPython is imported only if it is running already.
"""

from __future__ import annotations

import html
import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DRAW_SECONDS = 0.2  # at least, between two updates
STYLES = {"dim": "opacity: .65", "yellow": "color: #b58900", "red": "color: #d33"}

Bar = tuple[str, int, int, str]  # name, done, total, words


@dataclass
class Shown:
    """The content of a notebook's output.

    lines  with their styles
    bars   of running runs
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    bars: Sequence[Bar] = ()


class NotebookOutput:
    """One output of a cell; the first line makes it, later ones update it."""

    def __init__(self) -> None:
        self.shown = Shown()
        self._handle: Any = None
        self._drawn = 0.0

    def say(self, words: str, style: str = "") -> None:
        self.shown.lines.append((words, style))
        self._draw()

    def draw(self, bars: Sequence[Bar]) -> None:
        """Show these bars, unless the last ones were drawn a moment ago."""
        self.shown.bars = bars
        if time.monotonic() - self._drawn > DRAW_SECONDS:
            self._draw()

    def end(self) -> None:
        """Keep the lines, remove the bars."""
        self.shown.bars = ()
        if self.shown.lines or self._handle is not None:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        content = {"text/plain": as_text(self.shown), "text/html": as_html(self.shown)}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def as_html(shown: Shown) -> str:
    """Everything so far as HTML in the colours of the notebook."""
    lines = [f'<div style="{STYLES.get(style, "")}">{html.escape(words)}</div>' for words, style in shown.lines]
    bars = [
        f'<div>{html.escape(name)} <progress value="{done}" max="{total}"></progress> {done}/{total} '
        f"{html.escape(words)}</div>"
        for name, done, total, words in shown.bars
    ]
    return f'<div style="font-size: 90%">{"".join([*lines, *bars])}</div>'


def as_text(shown: Shown) -> str:
    """The same without HTML."""
    bars = [f"{name}  {done}/{total}  {words}".rstrip() for name, done, total, words in shown.bars]
    return "\n".join([*(words for words, _ in shown.lines), *bars])
