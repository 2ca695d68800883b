"""Tables for `turnout list` and `turnout data`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from turnout.data.cifar import CIFAR10_FILES, CIFAR100_FILES
from turnout.data.files import PublicSet, locate
from turnout.data.mnist import EMNIST_ARCHIVE, EMNIST_LABELS, FASHION_FILES, MNIST_FILES
from turnout.recipes import recipes
from turnout.running.config.catalogue import Kind, first_sentence

EMNIST_PARTS = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")


def _table(title: str) -> Table:
    heading = Text(title, style="bold")
    return Table(title=heading, title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False)


def recipe_table() -> Table:
    """The recipes with a line each."""
    table = _table("recipes (turnout run NAME)")
    for name, recipe in recipes().items():
        table.add_row(Text(name, style="cyan"), first_sentence(recipe))
    return table


def kind_table(role: str, kinds: list[Kind]) -> Table:
    """The kinds of a role: their names, descriptions and settings."""
    table = _table(role)
    for kind in kinds:
        words = Text(kind.about)
        if kind.settings:
            words.append(f"\n{kind.written}", style="dim")
        table.add_row(Text(", ".join(kind.names), style="cyan"), words)
    return table


def public_table(folder: Path) -> Table:
    """The public data sets: where each was found, or which files belong where."""
    table = _table("public data sets")
    for wanted in (MNIST_FILES, FASHION_FILES, EMNIST_ARCHIVE):
        found = _all_of([file.name for file in wanted.files], folder, wanted)
        splits = {}
        for split in EMNIST_LABELS if wanted is EMNIST_ARCHIVE and not found else ():
            files = [f"emnist-{split}-{part}-ubyte.gz" for part in EMNIST_PARTS]
            if (path := _all_of(files, folder, EMNIST_ARCHIVE)) is not None:
                splits[split] = path
        state = _state(found or next(iter(splits.values()), None), wanted.names(), folder / wanted.folders[0])
        table.add_row(wanted.title, state.append(f" ({', '.join(splits)})" if splits else ""))
    for layout in (CIFAR10_FILES, CIFAR100_FILES):
        unpacked = [folder / layout.folder, folder / layout.archive.name.split("-binary")[0] / layout.folder]
        archive = locate(layout.archive.name, [folder, *(folder / sub for sub in ("cifar", "cifar10", "cifar100"))])
        there = next((path for path in unpacked if path.is_dir()), archive)
        table.add_row(layout.title, _state(there, layout.archive.name, folder))
    return table


def _all_of(names: Sequence[str], folder: Path, wanted: PublicSet) -> Path | None:
    """The path of the first of these files if all of them exist, else None."""
    found = [locate(name, [folder / sub for sub in wanted.folders]) for name in names]
    return found[0] if all(found) else None


def _state(found: Path | None, files: str, place: Path) -> Text:
    if found is not None:
        return Text(f"found: {found.parent}", style="green")
    return Text(f"missing: downloaded when first used, or put {files} into {place}")
