"""A fleet's log: `turnout fleet` describes it, `turnout advise` recommends a method for it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.common import (
    AS_GUESSED,
    DataDir,
    Jobs,
    Json,
    Quiet,
    check_json,
    permits_code,
    reads_a_log,
    say,
    write_json,
)
from turnout.errors import UserError
from turnout.machine.files import check_destination

if TYPE_CHECKING:
    from turnout.fleet import Reading

Log = Annotated[
    Path | None,
    typer.Argument(
        metavar="LOG",
        help="CSV, Parquet, JSON, SQLite or DuckDB; a trace of FedScale's or FLASH's; the folder of a run.",
    ),
]
Page = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The diagnosis as a page, or FILE.svg: its charts.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The diagnosis as data.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="The log as round,client,work.")]
Devices = Annotated[
    Path | None, typer.Option(metavar="FILE", help="For a run: its recorded times as devices for world.devices.")
]
Example = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a synthetic log to try this on.")]


@reads_a_log
def fleet(
    log: Log = None,
    reading: Reading = AS_GUESSED,
    out: Page = None,
    json: JsonFile = None,
    csv: Csv = None,
    devices: Devices = None,
    example: Example = None,
) -> None:
    """Read a fleet's log and describe who turns up when, for how long, with whom, and who rarely does.

    Columns are guessed by their usual names, and every assumption is printed. A log may have rounds; or times of
    check-ins, or of starts and ends, which --every cuts into rounds. Without a log, --example writes one.

    \b
    turnout fleet --example checkins.csv
    turnout fleet checkins.csv --every 1h --out fleet.html
    turnout fleet log.csv --client device --round t --work epochs --full-work 5 --missing not-asked
    turnout fleet sessions.parquet --start connected --end disconnected --every 15min --csv turnout.csv
    turnout fleet client_behave_trace --every 1h
    turnout fleet --from flower superlink-logs/ --every 10min
    turnout fleet checkins.csv --since 2026-03-20 --skip-faulty
    turnout fleet runs/mine
    turnout fleet runs/deployment --devices fleet.csv
    """
    if (log is None) == (example is None):
        raise UserError("give a log, or --example FILE to write a synthetic one")
    for option, path in (("--out", out), ("--json", json), ("--csv", csv), ("--example", example)):
        if path is not None:
            check_destination(option, path)
    if example is not None:
        from turnout.fleet.example import ExampleFleet

        made = ExampleFleet()
        rows = made.write(example)
        say(f"{example}: {rows:,} check-ins of {made.devices} devices in {made.days} days", stderr=False)
        say(f"turnout fleet {example} --every 1h", stderr=False)
    elif log is not None and devices is not None:
        write_devices(log, devices)
    elif log is not None:
        _describe(log, reading, out, json, csv)


def _describe(log: Path, reading: Reading, out: Path | None, json: Path | None, csv: Path | None) -> None:
    from turnout.fleet import read_fleet
    from turnout.fleet.diagnosis import as_json, diagnose, parts_to_try
    from turnout.fleet.diagnosis_page import as_text, write_fleet_page, write_fleet_picture
    from turnout.fleet.groups import away_together
    from turnout.fleet.read_log import with_run_examples
    from turnout.machine.files import replacing, write_whole
    from turnout.machine.terminal import console
    from turnout.world.log import write_turnout

    screen = console()
    with console(stderr=True).status(f"reading {log}") as progress:
        fleet = read_fleet(log, reading)
        if (log / "records.sqlite").is_file():
            fleet = with_run_examples(fleet, log)
        progress.update("looking for groups and outages")
        groups = away_together(fleet)
        found = diagnose(fleet, groups)
        parts = parts_to_try(found, reading)
    for piece in as_text(found, parts):
        screen.print(piece, soft_wrap=False)
    if out is not None and out.suffix == ".svg":
        write_fleet_picture(out, fleet, found)
    elif out is not None:
        write_fleet_page(out, fleet, found, groups, parts)
    if json is not None:
        write_whole(json, as_json(found, parts))
    if csv is not None:
        with replacing(csv) as temporary:
            write_turnout(temporary, fleet.whole_rows())
    for path in (out, json, csv):
        if path is not None:
            say(f"{path} written", stderr=False)


File = Annotated[
    str | None,
    typer.Argument(metavar="[EXPERIMENT.toml]", help="Your data and model; its variants race too. [default: digits]"),
]
Budget = Annotated[str, typer.Option(metavar="10min", help="The time it may take.")]
Aim = Annotated[str, typer.Option("--for", metavar="AIM", help="accuracy, worst-tenth, personal or bytes.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder; resumes if it exists.")]
Also = Annotated[
    list[str] | None, typer.Option(metavar="A.B=C", help="A further candidate, as for run --set; repeatable.")
]
Only = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these candidates; repeatable.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of a run. [default: the experiment's]")]
Seeds = Annotated[int | None, typer.Option(min=4, help="At most this many seeds. [default: by the budget]")]
Tune = Annotated[bool, typer.Option("--tune/--no-tune", help="Race every candidate at several learning rates.")]
Levers = Annotated[
    bool, typer.Option("--levers/--no-levers", help="Try round length, over-asking, deadlines and buffers too.")
]
Export = Annotated[
    str | None, typer.Option(metavar="flower", help="Write the method as a strategy for Flower, into DIR/flower.")
]
Epsilon = Annotated[
    float | None, typer.Option(min=0, metavar="E", help="Of differential privacy: which settings reach it.")
]
Delta = Annotated[float | None, typer.Option(min=0, metavar="D", help="δ beside --epsilon, below 1 / clients.")]
Watts = Annotated[float | None, typer.Option(min=0, metavar="W", help="Of a device at work, for energy.")]


@permits_code
@reads_a_log
def advise(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The fleet's log, as for turnout fleet.")],
    experiment: File = None,
    budget: Budget = "10min",
    aim: Aim = "accuracy",
    out: Out = None,
    also: Also = None,
    only: Only = None,
    rounds: Rounds = None,
    seeds: Seeds = None,
    tune: Tune = True,
    levers: Levers = True,
    watts: Watts = None,
    export: Export = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    reading: Reading = AS_GUESSED,
    jobs: Jobs = None,
    quiet: Quiet = False,
    json_to: Json = None,
    data_dir: DataDir = None,
) -> None:
    """Recommend a method for a fleet, from its log.

    Candidates (FedAvg, schemes, friends, stale, SCAFFOLD, FedNova, ternary messages, personal layers, ...) race under
    the log's turnout, each at several learning rates, on your experiment or on stand-ins from mild to harsh; a
    candidate that is behind with 95 % confidence is dropped. Best is what would be ahead on other logs of the fleet
    too, and does not collapse. Levers of production are then tried on it. The folder has a page, recommended.toml and
    all numbers. The same command with --out resumes an interrupted race.

    \b
    turnout advise checkins.csv --every 1h
    turnout advise turnout.csv my.toml --for worst-tenth --budget 1h --out advice
    turnout advise turnout.csv my.toml --also algorithm.weighting=my_module:Mine
    turnout advise checkins.csv --every 1h --watts 3 --export flower --out advice
    turnout advise checkins.csv --every 1h --epsilon 4 --delta 1e-6
    """
    from turnout.cli.planning import check_numbers, read_source
    from turnout.fleet.advice import advise as advised
    from turnout.machine.terminal import console
    from turnout.running.charts.units import duration
    from turnout.running.folder import new_folder

    check_numbers(None, jobs)
    check_json(json_to)
    if export not in (None, "flower"):
        raise UserError(f"--export {export}: a method can be written as a strategy for flower")
    given = None if experiment is None else read_source(experiment)[1]
    folder = out or new_folder(f"advise-{Path(log).stem}")
    try:
        found = advised(
            log, given, aim=aim, budget=budget, out=folder, reading=reading, also=also or (), only=only or (),
            rounds=rounds, seeds=seeds, tune=tune, levers=levers, watts=watts, epsilon=epsilon, delta=delta,
            jobs=jobs, quiet=quiet, data_dir=data_dir,
        )  # fmt: skip
    except KeyboardInterrupt:
        again = [*sys.argv[1:], *([] if out else ["--out", str(folder)])]
        say(f"\ninterrupted; resume with: {shlex.join(['turnout', *again])}")
        raise typer.Exit(130) from None
    for words in found.warnings:
        say(f"warning: {words}", "yellow")
    if export is not None and found.recommended is not None:
        from turnout.deploy.flower_strategy import write_strategy

        made, every = found.recommended_experiment(), found.facts.every or 3600.0
        try:
            say(" and ".join(map(str, write_strategy(folder / "flower", made, every, found.sentence()))) + " written")
        except UserError as error:
            say(f"warning: no strategy for Flower is written: {error}", "yellow")
    if json_to is not None:
        write_json(found.data(), json_to, allow_nan=True)
    if json_to == "-":
        return
    if found.recommended is None:
        say(found.sentence(), "bold", stderr=False)
        raise typer.Exit(1)
    console().print(found.table())
    say(found.sentence(), "bold", stderr=False)
    listed = {
        "what to do": found.next_steps(),
        "world by world": found.world_sentences(),
        "it costs": found.cost_sentences(),
        "levers of production": found.lever_sentences(),
        "time was spent on": [f"{step}: {duration(seconds)}" for step, seconds in found.spent_on.items()],
    }
    for heading, lines in listed.items():
        if lines:
            say(f"\n{heading}", "bold", stderr=False)
        for line in lines:
            say(f"  · {line}", stderr=False)
    say(f"\npage: {folder / 'advice.html'}", stderr=False)


def write_devices(run: Path, path: Path) -> None:
    """Write the devices that a run's times give, and print how to use them."""
    from turnout.fleet.observed_times import write_observed_devices

    check_destination("--devices", path)
    found = write_observed_devices(run, path)
    noise = f", noise={found.noise:.2g}" if found.noise > 0.005 else ""
    say(f"{path}: {len(found.rows)} devices; use them with", stderr=False)
    say(f'  --set \'world.devices={{kind="device-file", path="{path}"{noise}}}\'', stderr=False)
