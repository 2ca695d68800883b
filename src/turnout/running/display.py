"""Progress of runs on stderr: live rows on a terminal or in a notebook with ipywidgets, plain lines elsewhere."""

from __future__ import annotations

import time
from importlib.util import find_spec

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from turnout.machine.terminal import Terminal, WordsColumn
from turnout.running.charts.units import duration
from turnout.running.messages import Began, Ended, Failed, Line, Message, Note

PLAIN_EVERY = 5.0  # seconds between plain lines


class Display:
    """Shows messages; a context manager. `total`: the rounds of all runs that had not ended before."""

    def __init__(self, total: int, quiet: bool = False, runs: int = 1, had_ended: int = 0):
        self.total, self.quiet, self.runs, self.ended = total, quiet, runs, had_ended
        self.console = Terminal(stderr=True, soft_wrap=True)
        in_notebook = self.console.is_jupyter and find_spec("ipywidgets") is not None
        self.live = not quiet and (self.console.is_terminal or in_notebook)
        self.rows: dict[str, TaskID] = {}
        self.done: dict[str, int] = {}
        self.before: dict[str, int] = {}  # rounds that a run had when it began
        self.shown: set[str] = set()  # shown once: why runs failed, notes
        self.start = self.last = time.monotonic()
        self.bar = Progress(
            WordsColumn("name"), BarColumn(bar_width=12), TextColumn("{task.completed}/{task.total}"),
            WordsColumn("words"), TimeRemainingColumn(compact=True),
            console=self.console, transient=True, disable=not self.live,
        )  # fmt: skip
        self.all = self.bar.add_task("", total=total, name=self._counted(), words="rounds", visible=runs > 1)

    def __enter__(self) -> Display:
        self.bar.start()
        if self.ended:
            self.say(f"{self._counted()} had ended before and are kept", "dim")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, message: Message) -> None:
        """Show one message."""
        prefix = f"{message.name}: " if message.name and self.runs > 1 else ""
        if isinstance(message, Began):
            if not self.before or message.done:
                self.say(prefix + message.words, "dim")
            self.done[message.name] = self.before[message.name] = message.done
            self.rows[message.name] = self.bar.add_task(
                "", total=message.rounds, completed=message.done, name=message.name or "rounds", words=""
            )
        elif isinstance(message, Line):
            self._round(message, prefix)
        elif isinstance(message, Note):
            self._once(message.words, f"{prefix}{message.words}", "yellow")
        else:
            self._ended(message)
        self.bar.update(self.all, completed=sum(self.done.values()), total=self.total, name=self._counted())

    def say(self, words: str, style: str = "") -> None:
        """Print a line above the live rows."""
        if not self.quiet:
            self.console.print(Text(words, style=style))

    def _once(self, why: str, words: str, style: str, again: str = "") -> None:
        """Print what runs of other seeds repeat only once; `again`: instead of it."""
        if words := again if why in self.shown else words:
            self.say(words, style)
        self.shown.add(why)

    def _counted(self) -> str:
        return f"{self.ended} of {self.runs} runs"

    def _round(self, line: Line, prefix: str) -> None:
        self.done[line.name] = line.done
        if self.live:
            self.bar.update(self.rows[line.name], completed=line.done, words="  ".join(line.words))
        elif time.monotonic() - self.last > PLAIN_EVERY:
            self.last = time.monotonic()
            done, before = sum(self.done.values()), sum(self.before.values())
            each = (self.last - self.start) / max(1, done - before)
            left = f", {duration(each * (self.total - done))} left"
            one = prefix + ", ".join([f"round {line.done}/{line.rounds}", *line.words])
            many = f"{self._counted()}, {done}/{self.total} rounds{left}; {one}"
            self.say(many if self.runs > 1 else one + left)

    def _ended(self, message: Ended | Failed) -> None:
        self.ended += 1
        if message.name in self.rows:
            row = self.rows.pop(message.name)
            rounds = next(int(task.total or 0) for task in self.bar.tasks if task.id == row)
            self.total -= rounds - self.done[message.name]  # of a run that ended early
            self.bar.remove_task(row)
        if isinstance(message, Ended):
            self.say(f"{message.name if self.runs > 1 else 'done'}: {message.words}")
        elif self.runs > 1:
            why, again = f"{message.name}: failed: {message.why}", f"{message.name}: failed, for the same reason"
            self._once(message.why, why, "red", again)
