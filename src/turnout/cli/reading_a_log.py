"""The options of commands that read a fleet's log: how it is read, the same wherever one is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from turnout.fleet import Reading

Round = Annotated[str | None, typer.Option("--round", metavar="COLUMN", help="The column of the round.")]
Client = Annotated[str | None, typer.Option("--client", metavar="COLUMN", help="The column of the client.")]
Work = Annotated[str | None, typer.Option("--work", metavar="COLUMN", help="The column of the work done, 0 to 1.")]
Time = Annotated[str | None, typer.Option("--time", metavar="COLUMN", help="The column of the time of a check-in.")]
Start = Annotated[str | None, typer.Option("--start", metavar="COLUMN", help="The column of the start of a stay.")]
End = Annotated[str | None, typer.Option("--end", metavar="COLUMN", help="The column of the end of a stay.")]
Examples = Annotated[
    str | None, typer.Option("--examples", metavar="COLUMN", help="The column of how many examples a client has.")
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="TIME", help="How long a round is, where the log has times: 15min, 1h.")
]
Missing = Annotated[
    str | None, typer.Option("--missing", metavar="absent|not-asked", help="What it means to have no row in a round.")
]
Gaps = Annotated[
    str,
    typer.Option("--gaps", metavar="outage|skip", help="Days in which nobody came: an outage, or no part of the log."),
]
Separator = Annotated[str | None, typer.Option("--separator", help="What stands between the cells of a CSV.")]
TimeFormat = Annotated[
    str | None, typer.Option("--time-format", help="How times are written, as for strptime: '%d.%m.%Y %H:%M'.")
]
FullWork = Annotated[float, typer.Option("--full-work", help="The number that means all of the work: 100 for percent.")]
FirstRound = Annotated[int | None, typer.Option("--first-round", help="The number of the log's first round.")]
Capacity = Annotated[
    str | None, typer.Option("--capacity", metavar="FILE", help="FedScale's capacity trace: decides the work.")
]
Samples = Annotated[int | None, typer.Option("--samples", help="With --capacity: samples to train on in a round.")]
Megabytes = Annotated[float | None, typer.Option("--megabytes", help="With --capacity: the size of the model.")]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="With --capacity: the most a round may take.")
]
Owners = Annotated[
    str | None,
    typer.Option("--owners", metavar="FILE", help="CSV of client,owner: whose data each client of the log has."),
]

AS_GUESSED: Any = None  # stands in a command's signature for the options; it is given a `Reading` in any case


def reading_of(
    round: Round = None,
    client: Client = None,
    work: Work = None,
    time: Time = None,
    start: Start = None,
    end: End = None,
    examples: Examples = None,
    every: Every = None,
    missing: Missing = None,
    gaps: Gaps = "outage",
    separator: Separator = None,
    time_format: TimeFormat = None,
    full_work: FullWork = 1.0,
    first_round: FirstRound = None,
    capacity: Capacity = None,
    samples: Samples = None,
    megabytes: Megabytes = None,
    deadline: Deadline = None,
    owners: Owners = None,
) -> Reading:
    """How the options say that a log is read."""
    from turnout.fleet import Reading

    return Reading(
        round, client, work, time, start, end, examples, every, missing, gaps, separator, time_format,  # type: ignore[arg-type]
        full_work, first_round, capacity=capacity, samples=samples, megabytes=megabytes, deadline=deadline,
        owners=owners,
    )  # fmt: skip


def reads_a_log(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options in the place of its parameter `reading`."""
    options = _parameters(reading_of)

    @wraps(command)
    def with_options(**given: Any) -> None:
        mine = {option.name: given.pop(option.name) for option in options}
        command(**given, reading=reading_of(**mine))

    parameters: list[inspect.Parameter] = []
    for parameter in _parameters(command):
        parameters += options if parameter.name == "reading" else [parameter]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """A function's parameters, their annotations as types; what is imported later (`Reading`) is not looked at."""
    hints = get_type_hints(function, localns={"Reading": object}, include_extras=True)
    return [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()]
