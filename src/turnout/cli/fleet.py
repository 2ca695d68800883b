"""`turnout fleet`: read a fleet's log, and say what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.exporting import write_devices
from turnout.cli.reading_a_log import AS_GUESSED, reads_a_log
from turnout.errors import UserError
from turnout.machine.files import check_destination

if TYPE_CHECKING:
    from turnout.fleet import Reading

Log = Annotated[
    Path | None,
    typer.Argument(metavar="LOG", help="CSV, Parquet, FedScale's availability trace, or the folder of a run."),
]
# What is written.
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The diagnosis as a page, or FILE.svg: its charts.")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The diagnosis as data.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="The log as round,client,work.")]
Devices = Annotated[
    Path | None,
    typer.Option("--devices", metavar="FILE", help="Of a run: its times as devices for world.devices."),
]
Example = Annotated[
    Path | None, typer.Option("--example", metavar="FILE", help="Write a log that is made up, to try this on.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Leave out what is drawn from the log beside it.")]


@reads_a_log
def fleet(
    log: Log = None,
    reading: Reading = AS_GUESSED,
    out: Out = None,
    json: Json = None,
    csv: Csv = None,
    devices: Devices = None,
    example: Example = None,
    quick: Quick = False,
) -> None:
    """Read a fleet's log and say what it shows: who turns up when, for how long, with whom, and who hardly ever does.

    Columns are guessed by their usual names, and what was assumed is said. A log may have rounds; or times of
    check-ins, or of starts and ends, which --every cuts into rounds. Without a log, --example writes one.

    \b
    turnout fleet --example checkins.csv
    turnout fleet checkins.csv --every 1h --out fleet.html
    turnout fleet log.csv --client device --round t --work epochs --full-work 5 --missing not-asked
    turnout fleet sessions.parquet --start connected --end disconnected --every 15min --csv turnout.csv
    turnout fleet client_behave_trace --every 1h --capacity client_device_capacity --samples 600 --megabytes 20
    turnout fleet runs/mine
    turnout fleet runs/deployment --devices fleet.csv
    """
    if (log is None) == (example is None):
        raise UserError("give a log, or --example FILE to write one that is made up")
    for option, path in (("--out", out), ("--json", json), ("--csv", csv), ("--example", example)):
        if path is not None:
            check_destination(option, path)
    if example is not None:
        _write_example(example)
        return
    if devices is not None and log is not None:
        write_devices(log, devices)
        return
    assert log is not None
    _look(log, reading, out, json, csv, quick)


def _write_example(path: Path) -> None:
    from turnout.cli.screen import say
    from turnout.fleet.example import ExampleFleet

    made = ExampleFleet()
    rows = made.write(path)
    say(f"{path}: {rows:,} check-ins of {made.devices} devices in {made.days} days", stderr=False)
    say(f"turnout fleet {path} --every 1h", stderr=False)


def _look(log: Path, reading: Reading, out: Path | None, json: Path | None, csv: Path | None, quick: bool) -> None:
    from turnout.cli.screen import console, say
    from turnout.fleet import read_fleet
    from turnout.fleet.diagnosis import as_json, diagnose, parts_to_try
    from turnout.fleet.diagnosis_page import write_fleet_page, write_fleet_picture
    from turnout.fleet.diagnosis_text import as_text
    from turnout.fleet.fit import fit
    from turnout.fleet.fleet_participation import compare_with_log
    from turnout.fleet.read_log import with_run_examples
    from turnout.machine.files import replacing, write_whole
    from turnout.world.log import write_turnout

    screen = console()
    with console(stderr=True).status(f"reading {log}") as progress:
        fleet = read_fleet(log, reading)
        if (log / "records.sqlite").is_file():
            fleet = with_run_examples(fleet, log)
        progress.update("looking for groups and outages")
        model = fit(fleet)
        found = diagnose(fleet, model)
        parts = parts_to_try(found, reading)
        progress.update("drawing from the log")
        comparison = None if quick else compare_with_log(fleet, model)
    for piece in as_text(found, parts, comparison):
        screen.print(piece, soft_wrap=False)
    if out is not None and out.suffix == ".svg":
        write_fleet_picture(out, fleet, found, comparison)
    elif out is not None:
        write_fleet_page(out, fleet, found, model.groups, parts, comparison)
    if json is not None:
        write_whole(json, as_json(found, parts, comparison))
    if csv is not None:
        with replacing(csv) as temporary:
            write_turnout(temporary, fleet.rows(whole=True))
    for path in (out, json, csv):
        if path is not None:
            say(f"{path} written", stderr=False)
