"""What there is to choose from and where data is: `turnout list`, `data`; and `report`, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.errors import UserError, nearest

Only = Annotated[str | None, typer.Argument(help="Only one role, such as participation; or: recipes.")]


Markdown = Annotated[bool, typer.Option("--markdown", help="The kinds as a Markdown page.")]


def list_parts(only: Only = None, as_markdown: Markdown = False) -> None:
    """List the recipes and the kinds of every part.

    With their settings and defaults, as they are in the code.

    \b
    turnout list
    turnout list weighting
    turnout list --markdown > docs/parts.md
    """
    from turnout.cli.screen import console
    from turnout.cli.tables import kind_table, recipe_table
    from turnout.running.config.catalogue import kinds, markdown

    if as_markdown:
        typer.echo(markdown(), nl=False)
        return
    found = kinds()
    known = ["recipes", *found]
    if only is not None and only not in known:
        raise UserError(f"there is no role {only!r}: {nearest(only, known)}")
    screen = console()
    if only in (None, "recipes"):
        screen.print(recipe_table())
    for role, listed in found.items():
        if only in (None, role):
            screen.print(kind_table(role, listed))


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or a folder of runs.")],
    target: Annotated[float | None, typer.Option(help="Also count the rounds until the main metric got there.")] = None,
) -> None:
    """Write the report of a folder again.

    report.html and curves.svg, from the records alone; and print the table.

    \b
    turnout report runs/mine
    turnout report runs/mine --target 0.9
    """
    from turnout.cli.screen import console
    from turnout.running.reported import say_warnings, say_where
    from turnout.view.report.page import write_picture, write_report
    from turnout.view.report.results import results_table

    screen = console()
    table = results_table(folder, target, screen.width)
    write_report(folder, target)
    write_picture(folder)
    screen.print(table)
    say_where(folder)
    say_warnings(folder)


def data(
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="A folder to look in instead.")] = None,
) -> None:
    """Say where data files are looked for.

    And which of the public data sets are there.

    \b
    turnout data
    turnout data --data-dir /data
    """
    from turnout.cli.screen import console, say
    from turnout.cli.tables import public_table
    from turnout.data import find_data_dir

    folder = find_data_dir(data_dir)
    say(f"data folder: {folder}{'' if folder.is_dir() else ' (not there yet)'}", stderr=False)
    console().print(public_table(folder))
