"""The display while candidates race: a live table in a terminal, a line for each step elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from turnout.fleet.advice.aims import Aim
from turnout.fleet.advice.race import Race, Scores, mean
from turnout.running.charts.units import duration, size


class RaceBoard:
    """The race so far, with a bar for the runs of the current step."""

    def __init__(self, aim: Aim, quiet: bool = False) -> None:
        self.aim, self.console = aim, Console(stderr=True, quiet=quiet)
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
                            TextColumn("{task.fields[left]}"), console=self.console)  # fmt: skip
        self.task = self.bar.add_task("", total=None, left="")
        self.table: Table | Text = Text("")
        self.live = Live(console=self.console, get_renderable=lambda: Group(self.table, self.bar), transient=True,
                         refresh_per_second=4)  # fmt: skip
        self.budget = 0.0

    def __enter__(self) -> RaceBoard:
        if self.console.is_terminal and not self.console.quiet:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live.is_started:
            self.live.stop()

    def show_facts(self, facts: Sequence[str]) -> None:
        """Print the facts about the log above the race."""
        for line in facts:
            self.console.print(f"· {line}", highlight=False, markup=False)

    def begin(self, step: str, runs: int, spent: float, budget: float) -> None:
        """Begin a step of so many runs."""
        self.budget = budget
        self.bar.reset(self.task, description=step, total=max(1, runs), completed=0, left=self._left(spent))
        if runs and not self.live.is_started:
            self.console.print(f"{step}: {runs} runs, {self._left(spent)}", highlight=False)

    def advance(self, spent: float) -> None:
        self.bar.update(self.task, advance=1, left=self._left(spent))

    def _left(self, spent: float) -> str:
        return f"{duration(max(0.0, self.budget - spent))} left"

    def show_race(self, race: Race, scores: Scores) -> None:
        """Show every candidate with its mean so far, the best first; those that are out are dim."""
        out = {d.name: f"behind {d.by}" for d in race.dropped} | {n: f"the same as {o}" for n, o in race.same.items()}
        means = {name: mean(scores.get(name, {})) for name in race.names}
        table = Table("candidate", "mean", "seeds", "", title=f"for {self.aim.name}", title_justify="left")
        for name in sorted(race.names, key=lambda n: (n in out, -means[n] if means[n] == means[n] else 0)):
            value = f"{means[name]:.4f}"
            if means[name] != means[name]:
                value = "–"
            elif self.aim.name == "bytes":
                value = size(2 ** -means[name])
            style = "dim" if name in out else None
            table.add_row(name, value, str(len(scores.get(name, {}))), out.get(name, "in the race"), style=style)
        self.table = table
        if not self.live.is_started and race.seeds:
            gone, same = len(race.dropped), len(race.same)
            words = f"after {race.seeds} seeds: {len(race.running)} still in, {gone} dropped, {same} set aside"
            self.console.print(words, highlight=False)
