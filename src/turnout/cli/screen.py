"""What commands print, on stdout or stderr."""

from __future__ import annotations

from rich.text import Text

from turnout.machine.terminal import console as console


def say(words: str, style: str = "", stderr: bool = True) -> None:
    """One line, as it is: no markup, and no line breaks of ours."""
    console(stderr).print(Text(words, style=style), soft_wrap=True)
