"""What commands print: a console as wide as the terminal, or of a fixed width where there is none."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from turnout.machine.terminal import Terminal

PLAIN_WIDTH = 120  # columns where the output is no terminal


def console(stderr: bool = False, width: int = PLAIN_WIDTH) -> Console:
    """A console for stdout or stderr."""
    found = Terminal(stderr=stderr)
    return found if found.is_terminal else Terminal(stderr=stderr, width=width)


def say(words: str, style: str = "", stderr: bool = True) -> None:
    """One line, as it is: no markup, and no line breaks of ours."""
    console(stderr).print(Text(words, style=style), soft_wrap=True)
