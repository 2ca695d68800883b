"""What several commands share: printing, options with the same meaning everywhere, and groups of options.

Nothing here loads torch, so that help is quick.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from turnout.machine.files import check_destination

Command = Callable[..., None]

Jobs = Annotated[int | None, typer.Option(help="Runs side by side. [default: one per core, or one on a GPU]")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - prints nothing else on stdout."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder of data files. [default: TURNOUT_DATA, or a cache folder]"),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a folder of runs.")]
Client = Annotated[
    str | None,
    typer.Option(metavar="N", help="Use this client's own model, personal parameters included: its number or name."),
]
Module = Annotated[
    str | None,
    typer.Option(
        metavar="PATH:NAME",
        help="The model's class or function (package.module:Name), for a run whose file cannot name it.",
    ),
]
PERSONAL_HINT = "Personal parameters have initial values here (their average, if shared): --client N has trained ones."


def say(words: str, style: str = "", stderr: bool = True) -> None:
    """Print one line as it is: no markup, and no added line breaks."""
    from rich.text import Text

    from turnout.machine.terminal import console

    console(stderr).print(Text(words, style=style), soft_wrap=True)


def check_json(json_to: str | None) -> None:
    """Check that the result can be written, before the work begins."""
    if json_to is not None and json_to != "-":
        check_destination("--json", json_to)


def write_json(data: Any, json_to: str, allow_nan: bool = False) -> None:
    text = json.dumps(data, indent=2, allow_nan=allow_nan) + "\n"
    sys.stdout.write(text) if json_to == "-" else Path(json_to).write_text(text, encoding="utf-8")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """A function's parameters, with annotations as types; `Reading` is imported later and stays unresolved."""
    hints = get_type_hints(function, localns={"Reading": object}, include_extras=True)
    return [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()]


def _with_parameters(command: Command, parameters: Sequence[inspect.Parameter]) -> Command:
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def permits_code(command: Command) -> Command:
    """Add `--allow` and `--no-code` to a command that reads experiment files."""

    def options(
        *,
        allow: Annotated[
            list[str] | None,
            typer.Option(
                metavar="PACKAGE",
                help="Let files name code of an installed package that you trust; repeatable. Modules below the "
                "current folder need no --allow.",
            ),
        ] = None,
        no_code: Annotated[
            bool, typer.Option("--no-code", help="Refuse all code that a file names: for files from others.")
        ] = False,
    ) -> None: ...

    @wraps(command)
    def with_options(*, allow: list[str] | None = None, no_code: bool = False, **given: Any) -> None:
        from turnout.running.config.dotted import allowing

        with allowing(allow or (), no_code):
            command(**given)

    return _with_parameters(with_options, [*_parameters(command), *_parameters(options)])


def column(help: str) -> Any:
    """An option that names a column of a log."""
    return typer.Option(metavar="COLUMN", help=f"The column of {help}.")


def log_options(
    round: Annotated[str | None, column("the round")] = None,
    client: Annotated[str | None, column("the client")] = None,
    work: Annotated[str | None, column("the work done, 0 to 1")] = None,
    time: Annotated[str | None, column("the time of a check-in")] = None,
    start: Annotated[str | None, column("the start of a session")] = None,
    end: Annotated[str | None, column("the end of a session")] = None,
    examples: Annotated[str | None, column("the number of examples a client has")] = None,
    label: Annotated[str | None, column("the label that most of a client's examples have")] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="The length of a round, for a log with times: 15min, 1h.")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(metavar="absent|not-asked", help="The meaning of no row in a round.")
    ] = None,
    gaps: Annotated[
        str, typer.Option(metavar="outage|skip", help="Days without any client: an outage, or not part of the log.")
    ] = "outage",
    time_format: Annotated[
        str | None, typer.Option(help="The format of times, as for strptime: '%d.%m.%Y %H:%M'.")
    ] = None,
    full_work: Annotated[float, typer.Option(help="The number that means all of the work: 100 for percent.")] = 1.0,
    first_round: Annotated[int | None, typer.Option(help="The number of the log's first round.")] = None,
    owners: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="CSV of client,owner: the owner of the data of each client of the log."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME|ROUND", help="Leave out what is before: 2026-03-01T14:30, or round 300.")
    ] = None,
    skip_faulty: Annotated[
        bool, typer.Option("--skip-faulty", help="Leave out faulty rows, and say how many.")
    ] = False,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="The table of a database with several.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="flower|nvflare", help="LOG is the server's log of that system.")
    ] = None,
) -> None:
    """The options of how a log is read; `turnout.fleet.Reading` has a field for each."""


AS_GUESSED: Any = None  # the default in a command's signature; the command always receives a `Reading`


def reads_a_log(command: Command) -> Command:
    """Replace the parameter `reading` of a command by the options of how a log is read."""
    options = _parameters(log_options)

    @wraps(command)
    def with_options(**given: Any) -> None:
        from turnout.fleet import Reading

        mine = {option.name: given.pop(option.name) for option in options}
        command(**given, reading=Reading(**mine))

    parameters: list[inspect.Parameter] = []
    for parameter in _parameters(command):
        parameters += options if parameter.name == "reading" else [parameter]
    return _with_parameters(with_options, parameters)
