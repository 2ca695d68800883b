"""Runs in the terminal and as pictures: `turnout runs`, `show`, `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.machine.files import check_destination

if TYPE_CHECKING:
    from rich.table import Table

    from turnout.running.listing import ListedRun

STATES = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "red", "waiting": "dim"}

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Where to look.", show_default="this folder")]
Each = Annotated[bool, typer.Option("--all", help="Every seed and variant of runs that were made together.")]
Shown = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="A run's folder, or a folder of runs.", show_default="the last one here"),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", metavar="NAME", help="What to draw, such as global_accuracy or bytes_up; may be given again."
    ),
]

Several = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="The picture: .svg, .png or .pdf.")]


def runs(folder: Folder = Path("."), each: Each = False) -> None:
    """List runs and how they are doing.

    Rounds done, the main metric, when. A run is running, finished, interrupted (it can be resumed), failed or waiting
    for its turn. Runs that were made together are one line, with the best variant's mean over seeds.

    \b
    turnout runs
    turnout runs experiments --all
    turnout runs runs/mine
    """
    from turnout.cli.screen import console, say
    from turnout.running.listing import listed_runs

    listed = listed_runs(folder, each)
    console().print(_table(folder, listed))
    for run in listed:
        if run.state.why and "failed" in run.state.state:
            say(f"{run.path}: {run.state.why}", "red", stderr=False)


def _table(folder: Path, listed: list[ListedRun]) -> Table:
    import time

    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("run", "state", box=box.SIMPLE, pad_edge=False)
    for head in ("rounds", "result", "when"):
        table.add_column(head, no_wrap=True)
    for run in listed:
        state, several = run.state, f" ({len(run.parts)} runs)" if run.parts else ""
        name = run.path.relative_to(folder) if run.path != folder else run.path
        words = Text(state.state, style=STATES.get(state.state, ""))
        if state.why and state.state == "finished":  # before its last round
            words.append(f"\n{state.why}", style="dim")
        rounds = f"{state.done:,}/{state.rounds:,}" if state.rounds else f"{state.done:,}"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when)) if run.when else ""
        table.add_row(Text(f"{name}{several}", overflow="fold"), words, rounds, _result(run), when)
    return table


def _result(run: ListedRun) -> str:
    from turnout.running.charts.units import show

    state = run.state
    if state.metric is None or state.value is None:
        return ""
    return f"{state.metric} {show(state.value, state.unit)}"


def plot(runs: Several, out: Out, metric: Metrics = None) -> None:
    """Draw curves of runs into one picture.

    A line for each variant, its mean over seeds with a band of one standard deviation; one chart for each metric.
    Several runs or folders of runs are drawn together. The suffix says the form: .svg, .png or .pdf.

    \b
    turnout plot runs/mine --out accuracy.svg
    turnout plot runs/fedavg runs/scaffold --metric global_accuracy --metric bytes_up --out both.pdf
    """
    from turnout.cli.screen import say
    from turnout.running.charts.units import size
    from turnout.view.report.figure import check_form, write_figure

    check_destination("--out", out)
    check_form(out)
    drawn = write_figure(runs, metric or [], out)
    say(f"{out}: {', '.join(drawn)}, {size(out.stat().st_size)}", stderr=False)


def show(run: Shown = None, metric: Metrics = None) -> None:
    """Show a run, or a folder of runs, in the terminal.

    What it is, the results, the curves, who turned up; from the records, also while it is running.

    \b
    turnout show
    turnout show runs/mine
    turnout show runs/mine --metric global_loss --metric bytes_up
    """
    from rich.text import Text

    from turnout.cli.screen import console
    from turnout.running.listing import last_run, listed_run
    from turnout.running.reported import say_warnings, say_where
    from turnout.view.report.text import shown

    folder = run or last_run()
    screen = console()
    pieces = list(shown(folder, metric or [], screen.width))
    one = listed_run(folder)
    screen.print(_table(folder, [one]))
    if one.state.why and "failed" in one.state.state:
        screen.print(Text(one.state.why, style="red"), soft_wrap=True)
    for piece in pieces:
        screen.print(piece)
    say_where(folder)
    say_warnings(folder)
