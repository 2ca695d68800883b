"""Progress of runs: live rows on a terminal, an updated output in a notebook, plain lines elsewhere.

Runs, which may be in other processes, send messages: they began, a round ended, they ended or failed. `Display` shows
them on stderr, so that stdout has results only.
"""

from __future__ import annotations

import html
import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from turnout.machine.terminal import Terminal
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.charts.units import Unit, duration, fitting, shortened, show, size

PLAIN_EVERY = 5.0  # seconds between plain lines
BAR, LEFT = 12, 7  # columns of a bar, and of the time that is left
DRAW_SECONDS = 0.2  # at least, between two updates
STYLES = {"dim": "opacity: .65", "yellow": "color: #b58900", "red": "color: #d33"}

Bar = tuple[str, int, int, str]  # name, done, total, words


@dataclass(frozen=True)
class Began:
    """A run begins.

    name       the run
    rounds     rounds of its experiment
    done       rounds that were done before
    device, engine, threads  how clients are trained
    headline   the size of the federation
    memory     an estimate in bytes
    data_note  how files became samples
    """

    name: str
    rounds: int
    done: int
    device: str
    engine: str
    threads: int
    headline: str
    memory: int
    data_note: str = ""

    def text(self) -> str:
        resumed = f", resumed after round {self.done}" if 0 < self.done < self.rounds else ""
        cores = f" ({self.threads} thread{'s' * (self.threads > 1)})" if self.device == "cpu" else ""
        return f"{self.headline}, {self.engine} on {self.device}{cores}, about {size(self.memory)} of memory{resumed}"


@dataclass(frozen=True)
class Line:
    """A round has ended.

    name       the run
    rounds     rounds of its experiment
    metric     the metric that is shown; `unit` and `value`: its unit and last value
    round      the round's number
    asked, answered, work  its turnout
    trained    clients that were trained so far, in `busy` seconds
    """

    name: str
    rounds: int
    metric: str
    unit: Unit = "number"
    round: int = -1
    value: float | None = None
    asked: int = 0
    answered: int = 0
    work: float = 0.0
    trained: int = 0
    busy: float = 0.0

    def after(self, record: RoundRecord, evaluation: Evaluation | None) -> Line:
        """The line after one more round."""
        return replace(
            self,
            round=record.round,
            value=evaluation.values.get(self.metric, self.value) if evaluation else self.value,
            asked=record.asked,
            answered=record.answered,
            work=record.work or 0.0,
            trained=self.trained + record.answered,
            busy=self.busy + record.seconds,
        )

    @property
    def measured(self) -> str:
        return "" if self.value is None else f"{self.metric} {show(self.value, self.unit)}"

    @property
    def turnout(self) -> str:
        return f"turnout {self.answered}/{self.asked}"

    @property
    def rate(self) -> str:
        return f"{self.trained / self.busy:,.0f} clients/s" if self.busy else ""

    def text(self) -> str:
        parts = [f"round {self.round + 1}/{self.rounds}", self.measured, self.turnout, f"work {self.work:.0%}"]
        return ", ".join(part for part in [*parts, self.rate] if part)


@dataclass(frozen=True)
class Note:
    """Something to know about a run, which continues.

    name   the run
    words  a sentence
    """

    name: str
    words: str


@dataclass(frozen=True)
class Ended:
    """A run is complete.

    name     the run
    rounds   its rounds
    seconds  the time of all its rounds
    stopped  the stop rule that ended it, in words
    """

    name: str
    rounds: int
    seconds: float
    stopped: str | None = None


@dataclass(frozen=True)
class Failed:
    """A run has failed.

    name     the run
    why      the reason
    mistake  whether it is a user's mistake, which needs no traceback
    began    whether the run had begun
    """

    name: str
    why: str
    mistake: bool
    began: bool = False


Message = Began | Line | Note | Ended | Failed


class NotebookOutput:
    """Progress in a notebook: one output of a cell; the first line makes it, later ones update it.

    rich would need ipywidgets for this, which many notebooks lack. IPython is imported only if it is running already.
    """

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


class Display:
    """Shows messages; a context manager. `total`: the rounds of all runs that had not ended before."""

    def __init__(self, total: int, quiet: bool = False, runs: int = 1, had_ended: int = 0):
        self.total, self.quiet, self.runs = total, quiet, runs
        self.console = Terminal(stderr=True, soft_wrap=True)
        self.notebook = NotebookOutput() if self.console.is_jupyter and not quiet else None
        self.live = not quiet and (self.console.is_terminal or self.notebook is not None)
        self.lines: dict[str, Line] = {}
        self.rows: dict[str, TaskID] = {}
        self.done: dict[str, int] = {}
        self.shown: set[str] = set()  # shown once: why runs failed, what does not fit
        self.before: dict[str, int] = {}  # rounds that a run had when it began
        self.ended, self.start, self.last = had_ended, time.monotonic(), time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=BAR),
            TextColumn("{task.completed}/{task.total}"), TextColumn("{task.fields[words]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=self.console, transient=True, disable=not self.live or self.notebook is not None,
        )  # fmt: skip
        self.all = self.bar.add_task(self._counted(), total=total, words="rounds", visible=runs > 1)

    def __enter__(self) -> Display:
        self.bar.start()
        if self.ended:
            self.say(f"{self._counted()} had ended before and are kept", "dim")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        if self.notebook is not None:
            self.notebook.end()

    def show(self, message: Message) -> None:
        """Show one message."""
        if isinstance(message, Began):
            self._began(message)
        elif isinstance(message, Line):
            self._round(message)
        elif isinstance(message, Note):
            if message.words not in self.shown:  # once: runs of other seeds repeat it
                self.shown.add(message.words)
                self.say(f"{self._prefix(message.name)}{message.words}", "yellow")
        else:
            self._ended(message)

    def say(self, words: str, style: str = "") -> None:
        """Print a line above the live rows."""
        if self.notebook is not None:
            self.notebook.say(words, style)
        elif not self.quiet:
            self.console.print(Text(words, style=style))

    def _prefix(self, name: str) -> str:
        return f"{name}: " if name and self.runs > 1 else ""

    def _counted(self) -> str:
        return f"{self.ended} of {self.runs} runs"

    def _began(self, message: Began) -> None:
        if not self.before or message.done:
            self.say(self._prefix(message.name) + message.text(), "dim")
        if message.data_note and not self.before:
            self.say(message.data_note, "dim")
        self.done[message.name] = self.before[message.name] = message.done
        name = shortened(message.name, self.console.width // 3) or "rounds"
        self.rows[message.name] = self.bar.add_task(name, total=message.rounds, completed=message.done, words="")
        self._count()

    def _round(self, line: Line) -> None:
        self.lines[line.name] = line
        self.done[line.name] = line.round + 1
        if self.live:
            self.bar.update(self.rows[line.name], completed=line.round + 1, words=self._words(line))
            self._count()
        elif time.monotonic() - self.last > PLAIN_EVERY:
            self.last = time.monotonic()
            many = f"{self._counted()}, {sum(self.done.values())}/{self.total} rounds{self._left()}; "
            one = self._prefix(line.name) + line.text()
            self.say(many + one if self.runs > 1 else one + self._left())

    def _words(self, line: Line) -> str:
        """What fits beside the bar; a note names the rest once."""
        names = max(len(task.description) for task in self.bar.tasks if task.visible)
        counter = max(len(f"{task.total:.0f}") * 2 + 1 for task in self.bar.tasks if task.visible)
        kept = fitting([line.measured, line.turnout, line.rate], self.console.width - names - BAR - counter - LEFT - 5)
        out = [word for word, part in (("turnout", line.turnout), ("clients/s", line.rate)) if part not in (*kept, "")]
        if out and (narrow := f"the bar leaves out {' and '.join(out)} at this width") not in self.shown:
            self.shown.add(narrow)
            self.say(narrow, "dim")
        return "  ".join(kept)

    def _left(self) -> str:
        done, before = sum(self.done.values()), sum(self.before.values())
        each = (time.monotonic() - self.start) / max(1, done - before)
        return f", {duration(each * (self.total - done))} left"

    def _count(self) -> None:
        self.bar.update(self.all, completed=sum(self.done.values()), description=self._counted())
        if self.notebook is not None:
            tasks = [task for task in self.bar.tasks if task.visible]
            self.notebook.draw([(t.description, int(t.completed), int(t.total or 0), t.fields["words"]) for t in tasks])

    def _ended(self, message: Ended | Failed) -> None:
        self.ended += 1
        line = self.lines.pop(message.name, None)
        if message.name in self.rows:
            self.bar.remove_task(self.rows.pop(message.name))
        if isinstance(message, Ended):
            self.total -= message.rounds - self.done.get(message.name, 0) if message.stopped else 0
            if line is None:
                has = "its one round" if message.rounds == 1 else f"all of its {message.rounds:,} rounds"
                self.say(f"{self._prefix(message.name)}has {has} already: nothing left to do", "dim")
            else:
                parts = [f"{line.round + 1} rounds in {duration(message.seconds)}", line.measured, message.stopped]
                name = message.name if self.runs > 1 else "done"
                self.say(f"{name}: " + ", ".join(part for part in parts if part))
        elif self.runs > 1:
            known = message.why in self.shown
            self.shown.add(message.why)
            self.say(f"{message.name}: failed{', for the same reason' if known else ': ' + message.why}", "red")
        self._count()
