"""`turnout init`: an experiment file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.permitting import permits_code
from turnout.errors import UserError, nearest
from turnout.machine.files import check_destination

HEADING = """An experiment for turnout, from the recipe {recipe}. Run it with: turnout run {file}
A setting that is left out has its default; `turnout list` shows the settings of every kind. A part of your own is
written as its path: kind = "package.module:Name"."""


@permits_code
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write.")],
    recipe: Annotated[str, typer.Option(help="The recipe to take the settings from.")] = "digits",
    variant: Annotated[str | None, typer.Option(help="Which of its variants. [default: the last]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write an experiment file to start from.

    With every setting, and comments that say what else each part could be.

    \b
    turnout init my.toml
    turnout init my.toml --recipe participation --variant C
    turnout run my.toml
    """
    from turnout.cli.screen import say
    from turnout.recipes import cook
    from turnout.running.config.catalogue import commented

    if file.suffix != ".toml":
        raise UserError(f"{file}: an experiment file's name ends in .toml")
    if file.exists() and not force:
        raise UserError(f"{file} is there already: choose another name, or add --force")
    check_destination("init", file)
    variants = cook(recipe)
    name = variant or list(variants)[-1]
    if name not in variants:
        raise UserError(f"{recipe} has no variant {name!r}: {nearest(name, variants)}")
    heading = HEADING.format(recipe=recipe if len(variants) == 1 else f"{recipe}, variant {name}", file=file)
    file.write_text(commented(variants[name], heading), encoding="utf-8")
    say(f"{file} is written; run it with: turnout run {file}", stderr=False)
