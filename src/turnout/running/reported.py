"""What is written and printed of runs when they end: report and picture, the table, and what is odd about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.text import Text

from turnout.errors import UserError
from turnout.machine.lock import locked
from turnout.machine.terminal import Terminal, console
from turnout.running.folder import LOCK_FILE, LOCK_SECONDS
from turnout.running.records.finding import find_runs
from turnout.running.records.warnings import warnings_in


def show_results(folder: Path, stderr: bool = False) -> None:
    """Print the table of results, if any run has records."""
    from turnout.view.report import results_table

    screen = console(stderr)
    with suppress(UserError):  # no records
        screen.print(results_table(folder, width=screen.width))


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
def reported(folder: Path) -> Iterator[None]:
    """Write the report and the picture of what there is in the end, also of a run that was interrupted or failed.

    Of two commands that began here at the same moment one was refused, and ends here too.
    """
    from turnout.view.report import write_picture, write_report

    try:
        yield
    finally:
        if folder.is_dir():
            with suppress(UserError), locked(folder / LOCK_FILE, LOCK_SECONDS):  # no records yet, or another's business
                write_report(folder)
                write_picture(folder)
