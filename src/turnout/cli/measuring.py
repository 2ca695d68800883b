"""`turnout trace record`: measure this machine's participation trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.common import Force, say
from turnout.errors import UserError

TRACE = """Measure this machine's participation trace.

\b
turnout trace record --out mine.csv
turnout run digits --set 'world.participation={kind="fleet-log", path="mine.csv", mode="blocks", of="client"}'
"""
trace = typer.Typer(no_args_is_help=True, help=TRACE, rich_markup_mode=None)

Load = Annotated[
    list[float] | None,
    typer.Option(help="Share of the CPU a competitor takes, 0 to below 1; repeatable. [default: 0 .3 .5 .7 .9]"),
]


@trace.callback()
def measures() -> None:  # a group of one command is still a group
    pass


@trace.command()
def record(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The log to write.")] = Path("trace.csv"),
    rounds: Annotated[int, typer.Option(help="Rounds for each load.")] = 40,
    epochs: Annotated[int, typer.Option(help="Epochs per round.")] = 5,
    load: Load = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds a round may take. [default: 1.1 x an undisturbed round]")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the training job's data.")] = 0,
    force: Force = False,
) -> None:
    """Measure how much of its work this machine finishes in time.

    The share of the epochs that is done before a deadline, alone and beside a competing load, as paper 000 did on
    Raspberry Pis (section 5.1). The log can be replayed, or sampled in blocks.

    \b
    turnout trace record --out my-machine.csv
    turnout trace record --rounds 10 --load 0 --load 0.5
    turnout run digits --set 'world.participation={kind="fleet-log", path="my-machine.csv", mode="blocks"}'
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from turnout.machine.terminal import console
    from turnout.world.recording import PAPER_LOADS, Row, record_log

    if out.exists() and not force:
        raise UserError(f"{out} exists already: choose another --out, or add --force")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; create it first")
    loads = load or PAPER_LOADS
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} rounds"))
    screen = console(stderr=True)
    still = not screen.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=screen, transient=True, disable=still) as progress:
        bar = progress.add_task("calibrating", total=rounds * len(loads))

        def show(done: int, total: int, row: Row) -> None:
            progress.update(bar, completed=done, description=f"{row[1]}: finished {row[2]:.0%}")

        rows = record_log(out, rounds, epochs, loads, deadline, seed=seed, progress=show)
    for client in dict.fromkeys(row[1] for row in rows):
        shares = [share for _, name, share in rows if name == client]
        say(f"{client}: finished {sum(shares) / len(shares):.0%} of the work on average", stderr=False)
    say(f"log: {out} ({len(rows)} rows)", stderr=False)
