"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 5.0  # seconds between plain lines


@dataclass(frozen=True)
class Line:
    """One round that ended, as shown."""

    name: str
    round: int
    rounds: int
    metric: str
    value: float | None
    asked: int
    answered: int
    work: float
    seconds: float
    stopped: str | None = None

    def text(self) -> str:
        measured = "" if self.value is None else f"  {self.metric} {self.value:.4f}"
        stop = f"  stopped: {self.stopped}" if self.stopped else ""
        who = f"  turnout {self.answered}/{self.asked} ({self.work:.0%} of the work)"
        return f"{self.name + '  ' if self.name else ''}round {self.round + 1}/{self.rounds}{measured}{who}{stop}"


class Display:
    """A progress bar with the latest round beside it; a context manager."""

    def __init__(self, total: int, quiet: bool = False, runs: int = 1):
        self.total, self.quiet, self.runs = total, quiet, runs
        self.console = Console(stderr=True)
        self.live = not quiet and self.console.is_terminal
        self.done, self.clients, self.busy, self.last = 0, 0, 0.0, time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} rounds"),
            TimeRemainingColumn(), console=self.console, transient=True, disable=not self.live,
        )  # fmt: skip
        self.task = self.bar.add_task("starting", total=total)

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, line: Line) -> None:
        """Take in one round."""
        self.done += 1
        self.clients += line.answered
        self.busy += line.seconds
        if line.stopped:
            self.done += line.rounds - line.round - 1
        if self.live:
            rate = self.clients / self.busy if self.busy else 0.0
            self.bar.update(self.task, completed=self.done, description=f"{line.text()}  {rate:,.0f} clients/s")
        elif not self.quiet and (time.monotonic() - self.last > PLAIN_EVERY or self.done >= self.total or line.stopped):
            self.last = time.monotonic()
            self.console.print(line.text(), highlight=False, markup=False)
