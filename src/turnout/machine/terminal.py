"""A console that shows any text as it is: no markup, and characters that command a terminal are replaced."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import ProgressColumn, Task
from rich.segment import Segment
from rich.text import Text

COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
SHOWN = "\N{REPLACEMENT CHARACTER}"
PLAIN_WIDTH = 120  # columns if the output is not a terminal


class Terminal(Console):
    """A rich console whose texts are neither markup nor commands."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not COMMANDS.search(segment.text):
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


def console(stderr: bool = False, width: int = PLAIN_WIDTH) -> Terminal:
    """A console for stdout or stderr: as wide as the terminal, or of a fixed width if there is none."""
    terminal = Terminal(stderr=stderr)
    return terminal if terminal.is_terminal else Terminal(stderr=stderr, width=width)


def print_line(text: str, style: str = "red") -> None:
    """Print a sentence to stderr, of any length on one line."""
    Terminal(stderr=True, soft_wrap=True).print(Text(text, style=style))


class WordsColumn(ProgressColumn):
    """A field of a task in a progress bar, cut where the terminal is too narrow."""

    def __init__(self, field: str):
        super().__init__()
        self.field = field

    def render(self, task: Task) -> Text:
        return Text(task.fields[self.field], no_wrap=True, overflow="ellipsis")


def as_printed(renderable: RenderableType) -> str:
    """The text that `console` would print of a table, without colours."""
    page = Terminal(file=io.StringIO(), width=console().width, color_system=None, force_jupyter=False)
    page.print(renderable)
    return page.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]


def harmless(text: str) -> str:
    """A text without commands to a terminal.

    >>> harmless("plain, \\x1b]0;title\\x07 and \\x1b[2J")
    'plain, �]0;title� and �[2J'
    """
    return COMMANDS.sub(SHOWN, text)
