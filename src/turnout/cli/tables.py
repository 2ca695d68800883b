"""Tables for `turnout list` and `turnout data`."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from turnout.catalogue import Kind, first_sentence
from turnout.data.cifar import CIFAR10_LAYOUT, CIFAR100_LAYOUT
from turnout.data.files import locate
from turnout.data.idx import EMNIST_ARCHIVE, FASHION_FILES, MNIST_FILES
from turnout.recipes import recipes


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False
    )


def recipe_table() -> Table:
    """The recipes with a line each."""
    table = _table("recipes (turnout run NAME)")
    for name, recipe in recipes().items():
        table.add_row(Text(name, style="cyan"), first_sentence(recipe))
    return table


def kind_table(role: str, kinds: list[Kind]) -> Table:
    """The kinds of a role: how they are written, what they are, their settings."""
    table = _table(role)
    for kind in kinds:
        words = Text(kind.about)
        if kind.settings:
            words.append(f"\n{kind.written}", style="dim")
        table.add_row(Text(", ".join(kind.names), style="cyan"), words)
    return table


def public_table(folder: Path) -> Table:
    """Which public data sets are in the data folder, and what to put where for the others."""
    table = _table("public data sets")
    for wanted in (MNIST_FILES, FASHION_FILES, EMNIST_ARCHIVE):
        found = [locate(file.name, [folder / sub for sub in wanted.folders]) for file in wanted.files]
        place = folder / wanted.folders[0]
        table.add_row(wanted.title, _state(found[0] if all(found) else None, wanted.names(), place))
    for layout in (CIFAR10_LAYOUT, CIFAR100_LAYOUT):
        unpacked = folder / layout.folder
        archive = locate(layout.archive.name, [folder, *(folder / sub for sub in ("cifar", "cifar10", "cifar100"))])
        table.add_row(layout.title, _state(unpacked if unpacked.is_dir() else archive, layout.archive.name, folder))
    return table


def _state(found: Path | None, files: str, place: Path) -> Text:
    if found is not None:
        return Text(f"there: {found.parent}", style="green")
    return Text(f"not there: downloaded when first used, or put {files} into {place}")
