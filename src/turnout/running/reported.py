"""When runs have ended: their hooks are called, and their table, report and warnings are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.table import Table as RichTable
from rich.text import Text

from turnout.errors import UserError
from turnout.machine.lock import locked
from turnout.machine.terminal import Terminal, console
from turnout.running.folder import LOCK_FILE, LOCK_SECONDS
from turnout.running.records.finding import find_runs
from turnout.running.records.warnings import warnings_in
from turnout.running.tracking import Hooks


def print_table(table: Callable[[Path, int], RichTable], folder: Path, stderr: bool = False) -> None:
    """Print the table of results, if any run has records."""
    screen = console(stderr)
    with suppress(UserError):  # no records
        screen.print(table(folder, screen.width))


def say_where(folder: Path, stderr: bool = False) -> None:
    """Print where the report and the picture are."""
    for name, path in (("report", folder / "report.html"), ("picture", folder / "curves.svg")):
        if path.exists():
            console(stderr).print(Text(f"{name}: {path}"), soft_wrap=True)


def say_warnings(folder: Path) -> None:
    """What is odd about the runs of a folder, as their last lines."""
    with suppress(UserError):  # no records
        for who, words in warnings_in(find_runs(folder)):
            line = f"warning ({who}): {words}" if who else f"warning: {words}"
            Terminal(stderr=True, soft_wrap=True).print(Text(line, style="yellow"))


@contextmanager
def reported(folder: Path, hooks: Hooks) -> Iterator[None]:
    """Call the hooks in the end, also of a run that was interrupted, failed or was refused."""
    try:
        yield
    finally:
        if folder.is_dir() and hooks.on_end:
            with suppress(UserError), locked(folder / LOCK_FILE, LOCK_SECONDS):  # no records yet, or another's business
                for hook in hooks.on_end:
                    hook(folder)
