"""Hooks: what the caller of a run adds to it (trackers, reports, tables); and warnings about runs that have ended.

The core knows neither reports nor tracking services: `to.run`, the command line and studies pass `turnout.view.HOOKS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.table import Table as RichTable
from rich.text import Text

from turnout.errors import UserError
from turnout.machine.lock import locked
from turnout.machine.terminal import Terminal, console
from turnout.running.folder import LOCK_FILE, LOCK_SECONDS
from turnout.running.loop import FinishedRound
from turnout.running.records.finding import find_runs
from turnout.running.records.warnings import warnings_in
from turnout.running.tracker import MakeTracker, Tracker, own_tracker

Function = TypeVar("Function", bound=Callable[..., Any])
OnRound = Callable[[FinishedRound], object]


@dataclass(frozen=True)
class Hooks:
    """What the caller of a run adds to it.

    on_end        functions of the folder, called when its runs have ended, also after a failure or an interrupt
    table         makes the table that is printed at the end, from the folder and the width of the terminal
    make_tracker  the tracker that a name in `Experiment.track` stands for
    trackers      trackers that are objects of the user's program
    on_round      a function of each finished round
    """

    on_end: tuple[Callable[[Path], object], ...] = ()
    table: Callable[[Path, int], RichTable] | None = None
    make_tracker: MakeTracker = own_tracker
    trackers: tuple[Tracker, ...] = ()
    on_round: OnRound | None = None

    @property
    def listens(self) -> bool:
        """Whether an object of this process receives each finished round."""
        return bool(self.trackers) or self.on_round is not None


NO_HOOKS: Hooks = Hooks()


def with_hooks(function: Function, hooks: Hooks) -> Function:
    """The function with these hooks, where its caller gives none."""

    @wraps(function)
    def called(*given: Any, **options: Any) -> Any:
        return function(*given, **{"hooks": hooks} | options)

    return cast(Function, called)


def import_view(module: str, what: str) -> Any:
    """A module of turnout.view, imported by name: the core does not depend on it."""
    try:
        return importlib.import_module(f"turnout.view.{module}")
    except ModuleNotFoundError as error:
        raise UserError(f"{what} needs {error.name}, which is not installed here") from error


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
