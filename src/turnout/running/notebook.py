"""Progress in a notebook: the lines so far and the bars below them, as one output that is updated in place.

rich would need ipywidgets for this, which many notebooks lack. IPython is imported only if it is running already.
"""

from __future__ import annotations

import html
import importlib
import time
from collections.abc import Sequence
from typing import Any

DRAW_SECONDS = 0.2  # at least, between two updates
STYLES = {"dim": "opacity: .65", "yellow": "color: #b58900", "red": "color: #d33"}

Bar = tuple[str, int, int, str]  # name, done, total, words


class NotebookOutput:
    """One output of a cell; the first line makes it, later ones update it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []  # with their styles
        self.bars: Sequence[Bar] = ()  # of running runs
        self._handle: Any = None
        self._drawn = 0.0

    def say(self, words: str, style: str = "") -> None:
        self.lines.append((words, style))
        self._draw()

    def draw(self, bars: Sequence[Bar]) -> None:
        """Show these bars, unless the last ones were drawn a moment ago."""
        self.bars = bars
        if time.monotonic() - self._drawn > DRAW_SECONDS:
            self._draw()

    def end(self) -> None:
        """Keep the lines, remove the bars."""
        self.bars = ()
        if self.lines or self._handle is not None:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(self.content(), raw=True, display_id=True)
        else:
            self._handle.update(self.content(), raw=True)

    def content(self) -> dict[str, str]:
        """Everything so far, as text and as HTML in the colours of the notebook."""
        text = [words for words, _ in self.lines]
        page = [f'<div style="{STYLES.get(style, "")}">{html.escape(words)}</div>' for words, style in self.lines]
        for name, done, total, words in self.bars:
            text.append(f"{name}  {done}/{total}  {words}".rstrip())
            bar = f'<progress value="{done}" max="{total}"></progress>'
            page.append(f"<div>{html.escape(name)} {bar} {done}/{total} {html.escape(words)}</div>")
        return {"text/plain": "\n".join(text), "text/html": f'<div style="font-size: 90%">{"".join(page)}</div>'}
