"""The command line: `turnout run`, `runs`, `show`, `plot`, `compare`, `export`, `list`, `study` and others.

running.py    `turnout run`; planning.py: from its arguments to a plan of runs; outcome.py: results as table and JSON;
              ranks.py: one run in several processes
seeing.py     `turnout runs`, `show`, `plot`
comparing.py  `turnout compare`
checking.py   `turnout check`
watching.py   `turnout watch`
advising.py   `turnout advise`
predicting.py `turnout predict`
exporting.py  `turnout export`
looking.py    `turnout list`, `report`, `data`; tables.py: their tables
writing.py    `turnout init`
fleet.py      `turnout fleet`; reading_a_log.py: the options of how a log is read
measuring.py  `turnout trace record`, `trace device`
deploying.py  `turnout deploy`, `turnout device`
parity.py     `turnout parity`
permitting.py `--allow` and `--no-code` of those that read experiments
screen.py     the console they print to

May import everything. Commands do so when they are called, so that help and mistyped commands are answered without
loading torch.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Annotated

import typer

from turnout import __version__
from turnout.cli import (
    advising,
    checking,
    comparing,
    deploying,
    exporting,
    looking,
    measuring,
    parity,
    predicting,
    running,
    seeing,
    watching,
    writing,
)
from turnout.cli import fleet as fleet_log
from turnout.errors import UserError, out_of_memory

EXAMPLES = """
Examples:

\b
  turnout run                                    compare schemes A, B, C, in seconds, without downloads
  turnout run digits --set rounds=100            another recipe, one setting changed
  turnout init my.toml                           write an experiment file to start from
  turnout run my.toml --grid algorithm.weighting=A,B,C --seeds 5
  turnout list                                   recipes, and every part an experiment can have
  turnout runs                                   the runs in this folder, and how they are doing
  turnout show                                   the last of them, with its curves
  turnout compare runs/mine --target 80%         which variant is better, and how sure that is
  turnout watch                                  all of them in the browser, as they go on
  turnout advise checkins.csv --every 1h         which method suits a fleet, from its log
  turnout export runs/mine --model model.onnx    the trained model for other programs
  turnout deploy demo                            real devices through Flower: a server and five of them, here
  turnout fleet checkins.csv --every 1h          what a fleet's log shows, and which parts it speaks for
"""

typer.core.HAS_RICH = False  # help is plain text here, and with rich its brackets would have backslashes
app = typer.Typer(
    name="turnout",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("run")(running.run)
app.command("list")(looking.list_parts)
app.command("runs")(seeing.runs)
app.command("show")(seeing.show)
app.command("plot")(seeing.plot)
app.command("watch")(watching.watch)
app.command("compare")(comparing.compare)
app.command("advise")(advising.advise)
app.command("report")(looking.report)
app.command("check")(checking.check)
app.command("predict")(predicting.predict)
app.command("export")(exporting.export)
app.command("init")(writing.init)
app.command("data")(looking.data)
app.command("fleet")(fleet_log.fleet)
app.command("parity")(parity.parity)
TRACE = """This machine's own participation trace, and how fast it trains.

\b
turnout trace record --out mine.csv
turnout trace device digits --out laptop.csv
turnout run digits --set 'world.participation={kind="fleet-log", path="mine.csv", mode="blocks", of="client"}'
"""
trace = typer.Typer(no_args_is_help=True, help=TRACE, rich_markup_mode=None)
trace.command("record")(measuring.record)
trace.command("device")(measuring.device)
app.add_typer(trace, name="trace")


app.add_typer(deploying.deploy, name="deploy")
app.add_typer(deploying.device, name="device")


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


STUDY = """Published tables: run them, decide their claims.

\b
turnout study list
turnout study run participation --scale small --json found.json
turnout study show found.json
"""
ADDED = {"study": ("turnout-papers", STUDY)}  # commands of our other distributions: where each is, its help


def mount_added(arguments: Sequence[str]) -> None:
    """Add the commands of other installed packages: the entry points `turnout.commands`.

    The value of an entry point is a Typer app or a function. It is imported only if its command is called; `ADDED` has
    the help of our own.
    """
    app.registered_groups = [group for group in app.registered_groups if group.name not in _mounted]
    app.registered_commands = [command for command in app.registered_commands if command.name not in _mounted]
    _mounted.clear()
    own = {group.name for group in app.registered_groups} | {command.name for command in app.registered_commands}
    called = next(iter(arguments), None)
    if called in own:
        return
    found = {entry.name: entry for entry in entry_points(group="turnout.commands") if entry.name not in own}
    for name in {**ADDED, **found}:
        _mounted.add(name)
        package, about = ADDED.get(name, (found[name].value.partition(".")[0] if name in found else name, None))
        if name != called:
            app.add_typer(typer.Typer(), name=name, help=about or f"A command of {package}.")
            continue
        if name not in found:
            raise UserError(f"turnout {name} is in another package: pip install {package}")
        try:
            command = found[name].load()
        except Exception as error:
            raise UserError(
                f"turnout {name} cannot be loaded from {package}: {type(error).__name__}: {error}"
            ) from error
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, help=about or command.info.help)
        else:
            app.command(name)(command)


_mounted: set[str | None] = set()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; the user's mistake is printed as one sentence, with exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.path.append(os.getcwd())  # a dotted path may name a module of the current folder; libraries go before it
    _prepare_streams()
    received: list[int] = []
    try:
        mount_added(given)
        with _interruptible() as received:
            app(given, prog_name="turnout")
    except (Exception, SystemExit) as error:
        if received and getattr(error, "code", 1) != 0:  # libraries make other errors of an interrupt
            return 130
        return _code_of(error)
    except KeyboardInterrupt:
        return 130
    return 0


def _code_of(error: Exception | SystemExit) -> int:
    """Say what went wrong, and the exit code for it; what is nobody's mistake is raised again."""
    if (short := out_of_memory(error)) is not None and not isinstance(error, UserError | SystemExit):
        print(short, file=sys.stderr)  # without anything that would have to be loaded
        return 1
    try:
        raise error
    except UserError as mistake:
        print_error(str(mistake))
        return 2
    except OSError as error:
        print_error(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}")
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0


def _prepare_streams() -> None:
    """Replace letters that the terminal cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C, so that the report is written and the command to resume is printed.

    The list has the signals that came.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    heard = [signal.SIGTERM, *([signal.SIGINT] * (signal.getsignal(signal.SIGINT) is signal.default_int_handler))]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_error(sentence: str) -> None:
    from rich.text import Text

    from turnout.machine.terminal import Terminal

    Terminal(stderr=True, soft_wrap=True).print(Text(sentence, style="red"))
