"""Runs on disk: `turnout runs`, `show`, `plot`, `report`, `check`, and `watch` in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.common import RunFolder, say
from turnout.errors import UserError, optional
from turnout.machine.files import check_destination

if TYPE_CHECKING:
    from rich.table import Table

    from turnout.running.state import ListedRun

STATES = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "red", "waiting": "dim"}
NO_RUNS = "there are no runs in {folder}: `turnout run` makes one here, in the folder runs"

Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help="A metric to draw, such as global_accuracy or bytes_up; repeatable."),
]


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to search.", show_default="this folder")
    ] = Path("."),
    each: Annotated[bool, typer.Option("--all", help="Every seed and variant of runs made together.")] = False,
) -> None:
    """List runs and their progress.

    Rounds done, the main metric, the time. A run is running, finished, interrupted (it can be resumed), failed or
    waiting for its turn. Runs that were made together are one line, with the best variant's mean over seeds.

    \b
    turnout runs
    turnout runs experiments --all
    turnout runs runs/mine
    """
    from turnout.machine.terminal import console
    from turnout.running.state import listed_runs

    listed = listed_runs(folder, each)
    if not listed:
        say(NO_RUNS.format(folder=folder.absolute()), stderr=False)
        return
    console().print(_table(folder, listed))
    for run in listed:
        if run.state.why and "failed" in run.state.state:
            say(f"{run.path}: {run.state.why}", "red", stderr=False)


def _table(folder: Path, listed: list[ListedRun]) -> Table:
    import time

    from rich import box
    from rich.table import Table
    from rich.text import Text

    from turnout.running.charts.units import show

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
        result = f"{state.metric} {show(state.value, state.unit)}" if state.metric and state.value is not None else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when)) if run.when else ""
        table.add_row(Text(f"{name}{several}", overflow="fold"), words, rounds, result, when)
    return table


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture, an .svg file.")],
    metric: Metrics = None,
) -> None:
    """Draw curves of runs into one picture.

    A line for each variant, its mean over seeds with a band of one standard deviation; one chart for each metric.
    Several runs or folders of runs are drawn together.

    \b
    turnout plot runs/mine --out accuracy.svg
    turnout plot runs/fedavg runs/scaffold --metric global_accuracy --metric bytes_up --out both.svg
    """
    from turnout.running.charts.units import size
    from turnout.view.report.lines import write_figure

    check_destination("--out", out)
    drawn = write_figure(runs, metric or [], out)
    say(f"{out}: {', '.join(drawn)}, {size(out.stat().st_size)}", stderr=False)


def show(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run's folder, or a folder of runs.", show_default="the last one here"),
    ] = None,
    metric: Metrics = None,
) -> None:
    """Show a run, or a folder of runs, in the terminal.

    Its settings, results, curves and turnout; from the records, also while it is running.

    \b
    turnout show
    turnout show runs/mine
    turnout show runs/mine --metric global_loss --metric bytes_up
    """
    from rich.text import Text

    from turnout.machine.terminal import console
    from turnout.running.runs import say_warnings, say_where
    from turnout.running.state import listed_run, listed_runs
    from turnout.view.report.short import shown

    if run is None and not (listed := listed_runs(Path("."))):
        raise UserError(NO_RUNS.format(folder=Path.cwd()))
    folder = run or listed[0].path
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


def report(
    folder: RunFolder,
    target: Annotated[float | None, typer.Option(help="Also count the rounds until the main metric got there.")] = None,
) -> None:
    """Write the report of a folder again.

    Writes report.html and curves.svg from the records alone, and prints the table.

    \b
    turnout report runs/mine
    turnout report runs/mine --target 0.9
    """
    from turnout.machine.terminal import console
    from turnout.running.runs import say_warnings, say_where
    from turnout.view.report.page import write_picture, write_report
    from turnout.view.report.results import results_table

    screen = console()
    table = results_table(folder, target, screen.width)
    write_report(folder, target)
    write_picture(folder)
    screen.print(table)
    say_where(folder)
    say_warnings(folder)


def check(folder: RunFolder) -> None:
    """Verify a run's files.

    Everything that a resumed run, a report or an export would read back has a checksum; a damaged file is named, with
    what can be saved. Ends with code 1 if something is damaged.

    \b
    turnout check runs/mine
    """
    from turnout.running.checking import checked_folder

    checked, damaged = 0, 0
    for found in checked_folder(folder):
        checked += 1
        if found.wrong is not None:
            damaged += 1
            say(found.wrong, "red", stderr=False)
        elif found.note is not None:
            say(f"{found.path}: {found.note}", "yellow", stderr=False)
    say(f"{folder}: {checked} files checked, {f'{damaged} damaged' if damaged else 'all intact'}", stderr=False)
    if damaged:
        raise typer.Exit(1)


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of runs to watch.", show_default="this folder")
    ] = Path("."),
    host: Annotated[
        str, typer.Option(help="The address to listen on; other than loopback needs the token to look, too.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="The port. [default: 8811 or the next]", min=0, max=65535)] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")] = False,
) -> None:
    """Watch runs in the browser, while they run.

    Running and finished runs, charts that follow the rounds, the clients that train now, every client's history; runs
    can be started, stopped and resumed. The printed address has a token: without it the page is read-only (and only
    from this machine). Ctrl-C ends the page, not the runs.

    \b
    turnout watch
    turnout watch experiments --port 9000 --open
    turnout watch --host 0.0.0.0
    """
    from turnout.errors import UserError

    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder of runs")
    for name in ("starlette", "uvicorn"):
        optional(name, "turnout watch", "watch")
    from turnout.view.live.serving import serve

    def show(address: str) -> None:
        say(f"{folder.absolute()} is on {address}", stderr=False)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(folder, host, port, say=show)
