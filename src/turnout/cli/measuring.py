"""`turnout trace record` and `device`: measure this machine's participation trace, and how fast it trains a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.permitting import permits_code
from turnout.errors import UserError

Out = Annotated[Path, typer.Option(metavar="FILE", help="The log to write.")]
Rounds = Annotated[int, typer.Option(help="Rounds for each load.")]
Epochs = Annotated[int, typer.Option(help="Epochs asked for a round.")]
Load = Annotated[
    list[float] | None,
    typer.Option(
        help="Share of the CPU a competitor takes, 0 to below 1; may be given again. [default: 0 .3 .5 .7 .9]"
    ),
]
Deadline = Annotated[float | None, typer.Option(help="Seconds a round may take. [default: 1.1 x an undisturbed round]")]


def record(
    out: Out = Path("trace.csv"),
    rounds: Rounds = 40,
    epochs: Epochs = 5,
    load: Load = None,
    deadline: Deadline = None,
    seed: Annotated[int, typer.Option(help="Of the training job's data.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Measure how much of its work this machine finishes in time.

    The share of the asked epochs that is done before a deadline, alone and beside a competing load, as paper 000 did on
    Raspberry Pis (section 5.1). The log can be replayed, or drawn from in stretches.

    \b
    turnout trace record --out my-machine.csv
    turnout trace record --rounds 10 --load 0 --load 0.5
    turnout run digits --set 'world.participation={kind="fleet-log", path="my-machine.csv", mode="blocks"}'
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from turnout.cli.screen import console, say
    from turnout.world.recording import PAPER_LOADS, Row, record_log

    if out.exists() and not force:
        raise UserError(f"{out} is there already: choose another --out, or add --force")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; create it first")
    loads = load or PAPER_LOADS
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} rounds"))
    screen = console(stderr=True)
    still = not screen.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=screen, transient=True, disable=still) as progress:
        bar = progress.add_task("calibrating", total=rounds * len(loads))

        def show(done: int, total: int, row: Row) -> None:
            progress.update(bar, completed=done, description=f"{row[1]}: finished {row[2]:.0%}")

        rows = record_log(out, rounds, epochs, loads, deadline, seed=seed, progress=show)
    for client in dict.fromkeys(row[1] for row in rows):
        shares = [share for _, name, share in rows if name == client]
        say(f"{client}: finished {sum(shares) / len(shares):.0%} of the work on average", stderr=False)
    say(f"log: {out} ({len(rows)} rows)", stderr=False)


@permits_code
def device(
    source: Annotated[
        str | None, typer.Argument(metavar="[RECIPE|FILE.toml]", help="Whose model and local training to measure.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file of devices to write.")] = Path("device.csv"),
    name: Annotated[str, typer.Option(help="What to call this device.")] = "this-machine",
    down_mbps: Annotated[float, typer.Option(help="Mbit/s to this device; not measured here.")] = 36.0,
    up_mbps: Annotated[float, typer.Option(help="Mbit/s from this device; not measured here.")] = 11.2,
    latency: Annotated[float, typer.Option(help="Seconds before a transfer begins.")] = 0.04,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 3.0,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Measure how many samples a second this machine trains on, as one client alone, one thread.

    The file is one for `world.devices`. Links are not measured: give what yours have.

    \b
    turnout trace device digits --out laptop.csv --up-mbps 5
    turnout run digits --set 'world.devices={kind="device-file", path="laptop.csv", mode="resample"}'
    """
    from turnout.cli.planning import DEFAULT_RECIPE, read_source
    from turnout.cli.screen import say
    from turnout.running.training_speed import samples_per_second
    from turnout.world.devices.device_file import DeviceRow, write_devices

    if out.exists() and not force:
        raise UserError(f"{out} is there already: choose another --out, or add --force")
    experiment = next(iter(read_source(source or DEFAULT_RECIPE)[1].values()))
    speed = samples_per_second(experiment, seconds)
    write_devices(out, [DeviceRow(name, speed, down_mbps, up_mbps, latency, name)])
    say(f"{name}: {speed:,.0f} samples a second; {out}", stderr=False)
