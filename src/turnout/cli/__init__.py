"""The command line: a table of commands, each loaded when it is used.

running.py    `turnout run`; planning.py: from its arguments to a plan of runs
seeing.py     `turnout runs`, `show`, `plot`, `report`, `check`, `watch`
comparing.py  `turnout compare`
exporting.py  `turnout export`, `predict`
looking.py    `turnout list`, `data`, `init`
private.py    `turnout privacy`
fleet.py      `turnout fleet`, `advise`
deploying.py  `turnout deploy`, `turnout device`
common.py     printing and options that several commands share

Installed packages add commands by entry points of the group `turnout.commands`.

May import everything. Commands do so when they are called, so that help and mistyped commands are answered without
loading torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint
from typing import Annotated, Any, NamedTuple

import click
import typer
from click.shell_completion import CompletionItem
from typer.core import TyperGroup

from turnout import __version__
from turnout.errors import UserError, near, out_of_memory
from turnout.suggestions import announced

EXAMPLES = """
Examples:

\b
  turnout run                                    what absence costs, and what helps; no downloads
  turnout run digits --set rounds=100            another recipe, one setting changed
  turnout init my.toml                           write an experiment file to start from
  turnout run my.toml --grid algorithm.weighting=A,B,C --seeds 5
  turnout list                                   recipes, and every part an experiment can have
  turnout runs                                   the runs in this folder and their progress
  turnout show                                   the last of them, with its curves
  turnout compare runs/mine --target 80%         which variant is better, and how certain that is
  turnout watch                                  all of them in the browser, while they run
  turnout advise checkins.csv --every 1h         which method suits a fleet, from its log
  turnout export runs/mine --model model.onnx    the trained model for other programs
  turnout deploy demo                            real devices through Flower: a server and five of them, here
  turnout fleet checkins.csv --every 1h          what a fleet's log shows, and which parts it suggests
"""


class Command(NamedTuple):
    """A row of the table of commands.

    place  "module:name" of a function, or of a Typer app that has commands of its own
    help   one line for `turnout --help`
    needs  a package without which the command does not exist
    """

    place: str
    help: str
    needs: str = "turnout"


COMMANDS = {
    "run": Command("turnout.cli.running:run", "Run an experiment, or compare several."),
    "list": Command("turnout.cli.looking:list_parts", "List the recipes and the kinds of every part."),
    "runs": Command("turnout.cli.seeing:runs", "List runs and their progress."),
    "show": Command("turnout.cli.seeing:show", "Show a run, or a folder of runs, in the terminal.", "turnout.view"),
    "plot": Command("turnout.cli.seeing:plot", "Draw curves of runs into one picture.", "turnout.view"),
    "watch": Command("turnout.cli.seeing:watch", "Watch runs in the browser, while they run.", "turnout.view"),
    "compare": Command(
        "turnout.cli.comparing:compare", "Compare runs: the difference to the best, with an interval.", "turnout.view"
    ),
    "advise": Command("turnout.cli.fleet:advise", "Recommend a method for a fleet, from its log.", "turnout.fleet"),
    "privacy": Command("turnout.cli.private:privacy", "Show ε of a run, or of a turnout that was logged."),
    "report": Command("turnout.cli.seeing:report", "Write the report of a folder again.", "turnout.view"),
    "check": Command("turnout.cli.seeing:check", "Verify a run's files."),
    "predict": Command("turnout.cli.exporting:predict", "Predict the rows of a table with a run's model."),
    "export": Command(
        "turnout.cli.exporting:export",
        "Write a run's model, card or records, or a Flower app.",
    ),
    "init": Command("turnout.cli.looking:init", "Write an experiment file to start from."),
    "data": Command("turnout.cli.looking:data", "Show where data files are searched for."),
    "fleet": Command("turnout.cli.fleet:fleet", "Read a fleet's log and describe who turns up when.", "turnout.fleet"),
    "deploy": Command("turnout.cli.deploying:deploy", "Train on real devices through Flower.", "turnout.deploy"),
    "device": Command("turnout.cli.deploying:device", "Run a device of such a training.", "turnout.deploy"),
}
ELSEWHERE = {"study": "turnout-papers"}  # commands of packages that may not be installed

typer.core.HAS_RICH = False  # help is plain text here, and with rich its brackets would have backslashes
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


@cache
def added_commands() -> dict[str, EntryPoint]:
    """The commands of installed packages, by name; none is loaded."""
    return {entry.name: entry for entry in announced("turnout.commands") if entry.name not in COMMANDS}


class CommandTable(TyperGroup):
    """A group of commands that are listed from the table and imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = [name for name, row in COMMANDS.items() if importlib.util.find_spec(row.needs) is not None]
        return [*own, *added_commands()]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if (package := ELSEWHERE.get(args[0])) is not None and args[0] not in added_commands():
                error.message = f"{error.message} It is a command of another package: pip install {package}"
            elif close := near(args[0], [name for name in self.list_commands(ctx) if name != args[0]]):
                error.message = f"{error.message} Did you mean {' or '.join(map(repr, close))}?"
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (row := COMMANDS.get(cmd_name)) is not None:
            if importlib.util.find_spec(row.needs) is None:
                raise UserError(f"turnout {cmd_name} needs {row.needs}, which is not installed here")
            module, _, name = row.place.partition(":")
            return as_command(cmd_name, getattr(importlib.import_module(module), name))
        if (entry := added_commands().get(cmd_name)) is not None:
            try:
                return as_command(cmd_name, entry.load())
            except Exception as error:  # any failure of an installed package's import
                why = f"{type(error).__name__}: {error}"
                print_error(f"warning: cannot load the command {cmd_name!r} of {entry.value} ({why})", "yellow")
        return None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, and options; nothing is loaded."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=_about(name)) for name in names), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _about(name)) for name in self.list_commands(ctx)])


def _about(name: str) -> str:
    """One line about a command, for which nothing is loaded."""
    if name in COMMANDS:
        return COMMANDS[name].help
    dist = added_commands()[name].dist
    return f"{dist.metadata['Summary'] or 'A command'} ({dist.name})." if dist else "A command of another package."


def as_command(name: str, thing: Any) -> click.Command:
    """The command of a function, or of a Typer app."""
    if not isinstance(thing, typer.Typer):
        function, thing = thing, typer.Typer(add_completion=False, **PLAIN)
        thing.command(name)(function)
    found = typer.main.get_command(thing)
    found.name = name
    return found


app = typer.Typer(
    name="turnout",
    cls=CommandTable,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    **PLAIN,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnout {__version__}")
        raise typer.Exit


@app.callback(help=f"Federated learning when clients do not all turn up.\n{EXAMPLES}")
def turnout(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The options before a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; a user's mistake is printed as one sentence, with exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.path.append(os.getcwd())  # a dotted path may name a module of the current folder; libraries go before it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # letters that the terminal cannot show
    try:
        with _interruptible() as received:
            app(given, prog_name="turnout")
    except (Exception, SystemExit) as error:
        if received and getattr(error, "code", 1) != 0:  # libraries raise other errors when interrupted
            return 130
        return _code_of(error)
    except KeyboardInterrupt:
        return 130
    return 0


def _code_of(error: Exception | SystemExit) -> int:
    """Print what went wrong and return the exit code; an error of ours is raised again."""
    if (short := out_of_memory(error)) is not None and not isinstance(error, UserError | SystemExit):
        print(short, file=sys.stderr)  # without loading anything
        return 1
    if isinstance(error, UserError):
        print_error(str(error))
        return 2
    if isinstance(error, OSError):
        print_error(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}")
        return 1
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0
    raise error


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C, so that the report is written and the command to resume is printed."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    watched = [signal.SIGTERM, *([signal.SIGINT] * (signal.getsignal(signal.SIGINT) is signal.default_int_handler))]
    before = {number: signal.signal(number, interrupt) for number in watched}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_error(sentence: str, style: str = "red") -> None:
    from turnout.machine.terminal import print_line  # rich takes longer to import than `--help` to print

    print_line(sentence, style)
