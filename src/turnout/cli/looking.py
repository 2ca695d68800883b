"""Before a run: `turnout list` the parts, `data` on disk, and `init`, an experiment file to start from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.common import Force, permits_code, say
from turnout.errors import UserError, nearest
from turnout.machine.files import check_destination

if TYPE_CHECKING:
    from rich.table import Table

EMNIST_PARTS = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
TEMPLATES = Path(__file__).parent / "templates"
HEADING = """An experiment for turnout, from the recipe {recipe}. Run it with: turnout run {file}
A setting that is left out has its default; `turnout list` shows the settings of every kind. A part of your own is
written as its path: kind = "package.module:Name"."""


def list_parts(
    only: Annotated[str | None, typer.Argument(help="Only one role, such as participation; or: recipes.")] = None,
) -> None:
    """List the recipes and the kinds of every part.

    With their settings and defaults, read from the code.

    \b
    turnout list
    turnout list weighting
    """
    from rich.text import Text

    from turnout.machine.terminal import console
    from turnout.recipes import recipes
    from turnout.running.config.catalogue import first_sentence, kinds

    found = kinds(installed=True)
    known = ["recipes", *found]
    if only is not None and only not in known:
        only = only.removesuffix("s")  # of the namespace in Python, such as `terms`
    if only is not None and only not in known:
        raise UserError(f"there is no role {only!r}: {nearest(only, known)}")
    screen = console()
    if only in (None, "recipes"):
        table = _table("recipes (turnout run NAME)")
        for name, recipe in recipes().items():
            table.add_row(Text(name, style="cyan"), first_sentence(recipe))
        screen.print(table)
    for role in (role for role in found if only in (None, role)):
        table = _table(role)
        for kind in found[role]:
            words = Text(kind.about)
            if kind.settings:
                words.append(f"\n{kind.written}", style="dim")
            table.add_row(Text(", ".join(kind.names), style="cyan"), words)
        screen.print(table)


def _table(title: str) -> Table:
    """A table without a head, under its title."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heading = Text(title, style="bold")
    return Table(title=heading, title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False)


def data(
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Another folder to search.")] = None,
) -> None:
    """Show where data files are searched for.

    And which of the public data sets are present.

    \b
    turnout data
    turnout data --data-dir /data
    """
    from rich.text import Text

    from turnout.data import find_data_dir
    from turnout.data.files import PublicSet, locate
    from turnout.data.image_sets import (
        CIFAR10_FILES,
        CIFAR100_FILES,
        EMNIST_ARCHIVE,
        EMNIST_LABELS,
        FASHION_FILES,
        MNIST_FILES,
    )
    from turnout.machine.terminal import console

    folder = find_data_dir(data_dir)
    say(f"data folder: {folder}{'' if folder.is_dir() else ' (does not exist yet)'}", stderr=False)

    def all_of(names: Sequence[str], wanted: PublicSet) -> Path | None:
        """The path of the first of these files if all of them exist."""
        found = [locate(name, [folder / sub for sub in wanted.folders]) for name in names]
        return found[0] if all(found) else None

    def state(found: Path | None, files: str, place: Path) -> Text:
        if found is not None:
            return Text(f"found: {found.parent}", style="green")
        return Text(f"missing: downloaded when first used, or put {files} into {place}")

    table = _table("public data sets")
    for wanted in (MNIST_FILES, FASHION_FILES, EMNIST_ARCHIVE):
        found, splits = all_of([file.name for file in wanted.files], wanted), {}
        for split in EMNIST_LABELS if wanted is EMNIST_ARCHIVE and not found else ():
            files = [f"emnist-{split}-{part}-ubyte.gz" for part in EMNIST_PARTS]
            if (path := all_of(files, EMNIST_ARCHIVE)) is not None:
                splits[split] = path
        words = state(found or next(iter(splits.values()), None), wanted.names(), folder / wanted.folders[0])
        table.add_row(wanted.title, words.append(f" ({', '.join(splits)})" if splits else ""))
    for layout in (CIFAR10_FILES, CIFAR100_FILES):
        unpacked = [folder / layout.folder, folder / layout.archive.name.split("-binary")[0] / layout.folder]
        archive = locate(layout.archive.name, [folder, *(folder / sub for sub in ("cifar", "cifar10", "cifar100"))])
        there = next((path for path in unpacked if path.is_dir()), archive)
        table.add_row(layout.title, state(there, layout.archive.name, folder))
    console().print(table)


@permits_code
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write.")],
    recipe: Annotated[str, typer.Option(help="The recipe to take the settings from.")] = "digits",
    variant: Annotated[str | None, typer.Option(help="One of its variants. [default: the last]")] = None,
    template: Annotated[
        str | None, typer.Option(help="A short file instead of a recipe: lora (fine-tune a language model).")
    ] = None,
    force: Force = False,
) -> None:
    """Write an experiment file to start from.

    With every setting, and comments that list the alternatives of each part; a template has only what it needs.

    \b
    turnout init my.toml
    turnout init my.toml --template lora
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
    if template is not None:
        known = {found.stem: found for found in TEMPLATES.glob("*.toml")}
        if template not in known:
            raise UserError(f"there is no template {template!r}: {nearest(template, known)}")
        file.write_text(known[template].read_text(encoding="utf-8"), encoding="utf-8")
        say(f"{file} is written: its comments name the folders and files it needs", stderr=False)
        return
    variants = cook(recipe)
    name = variant or list(variants)[-1]
    if name not in variants:
        raise UserError(f"{recipe} has no variant {name!r}: {nearest(name, variants)}")
    heading = HEADING.format(recipe=recipe if len(variants) == 1 else f"{recipe}, variant {name}", file=file)
    file.write_text(commented(variants[name], heading), encoding="utf-8")
    say(f"{file} is written; run it with: turnout run {file}", stderr=False)
