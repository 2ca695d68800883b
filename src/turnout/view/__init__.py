"""Looking at runs: report/ (pages, pictures, tables), live/ (`turnout watch`), trackers.py (TensorBoard, ...).

Reads records only. Nothing below imports this package: a run works without it, and its caller passes `HOOKS`.
"""

from pathlib import Path

from rich.table import Table

from turnout.running.tracking import Hooks
from turnout.view.trackers import make_tracker


def write_pages(folder: Path) -> None:
    """Write report.html and curves.svg of the runs in a folder."""
    from turnout.view.report.page import write_picture, write_report

    write_report(folder)
    write_picture(folder)


def make_table(folder: Path, width: int) -> Table:
    """The table of results for a terminal."""
    from turnout.view.report.results import results_table

    return results_table(folder, width=width)


HOOKS = Hooks(on_end=(write_pages,), table=make_table, make_tracker=make_tracker)
