"""Before a run: `turnout list` the parts, `data` on disk, and `init`, an experiment file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.common import Force, permits_code, say
from turnout.errors import UserError, nearest
from turnout.machine.files import check_destination

HEADING = """An experiment for turnout, from the recipe {recipe}. Run it with: turnout run {file}
A setting that is left out has its default; `turnout list` shows the settings of every kind. A part of your own is
written as its path: kind = "package.module:Name"."""


def list_parts(
    only: Annotated[str | None, typer.Argument(help="Only one role, such as participation; or: recipes.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The kinds as a Markdown page.")] = False,
) -> None:
    """List the recipes and the kinds of every part.

    With their settings and defaults, read from the code.

    \b
    turnout list
    turnout list weighting
    turnout list --markdown
    """
    from turnout.cli.tables import kind_table, recipe_table
    from turnout.machine.terminal import console
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


def data(
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Another folder to search.")] = None,
) -> None:
    """Show where data files are searched for.

    And which of the public data sets are present.

    \b
    turnout data
    turnout data --data-dir /data
    """
    from turnout.cli.tables import public_table
    from turnout.data import find_data_dir
    from turnout.machine.terminal import console

    folder = find_data_dir(data_dir)
    say(f"data folder: {folder}{'' if folder.is_dir() else ' (does not exist yet)'}", stderr=False)
    console().print(public_table(folder))


@permits_code
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write.")],
    recipe: Annotated[str, typer.Option(help="The recipe to take the settings from.")] = "digits",
    variant: Annotated[str | None, typer.Option(help="One of its variants. [default: the last]")] = None,
    force: Force = False,
) -> None:
    """Write an experiment file to start from.

    With every setting, and comments that list the alternatives of each part.

    \b
    turnout init my.toml
    turnout init my.toml --recipe participation --variant C
    turnout run my.toml
    """
    from turnout.recipes import cook
    from turnout.running.config.catalogue import commented

    if file.suffix != ".toml":
        raise UserError(f"{file}: an experiment file's name ends in .toml")
    if file.exists() and not force:
        raise UserError(f"{file} exists already: choose another name, or add --force")
    check_destination("init", file)
    variants = cook(recipe)
    name = variant or list(variants)[-1]
    if name not in variants:
        raise UserError(f"{recipe} has no variant {name!r}: {nearest(name, variants)}")
    heading = HEADING.format(recipe=recipe if len(variants) == 1 else f"{recipe}, variant {name}", file=file)
    file.write_text(commented(variants[name], heading), encoding="utf-8")
    say(f"{file} is written; run it with: turnout run {file}", stderr=False)
