"""`turnout trace device`: measure how fast this machine trains a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.common import Force, permits_code, say
from turnout.errors import UserError

TRACE = """Measure this machine's training speed.

\b
turnout trace device digits --out laptop.csv
"""
trace = typer.Typer(no_args_is_help=True, help=TRACE, rich_markup_mode=None)


@trace.callback()
def _trace() -> None:
    """A command with subcommands, even if it has one."""


@trace.command()
@permits_code
def device(
    source: Annotated[
        str | None, typer.Argument(metavar="[RECIPE|FILE.toml]", help="The model and local training to measure.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file of devices to write.")] = Path("device.csv"),
    name: Annotated[str, typer.Option(help="The name of this device.")] = "this-machine",
    down_mbps: Annotated[float, typer.Option(help="Mbit/s to this device; not measured here.")] = 36.0,
    up_mbps: Annotated[float, typer.Option(help="Mbit/s from this device; not measured here.")] = 11.2,
    latency: Annotated[float, typer.Option(help="Seconds before a transfer begins.")] = 0.04,
    seconds: Annotated[float, typer.Option(help="The time to measure for.")] = 3.0,
    force: Force = False,
) -> None:
    """Measure how many samples a second this machine trains on, as one client alone, on one thread.

    The file is one for `world.devices`. Links are not measured: give the numbers of yours.

    \b
    turnout trace device digits --out laptop.csv --up-mbps 5
    turnout run digits --set 'world.devices={kind="device-file", path="laptop.csv", mode="resample"}'
    """
    from turnout.cli.planning import DEFAULT_RECIPE, one_experiment
    from turnout.running.observed_times import samples_per_second
    from turnout.world.devices.device_file import DeviceRow, write_devices

    if out.exists() and not force:
        raise UserError(f"{out} exists already: choose another --out, or add --force")
    speed = samples_per_second(one_experiment(source or DEFAULT_RECIPE), seconds)
    write_devices(out, [DeviceRow(name, speed, down_mbps, up_mbps, latency, name)])
    say(f"{name}: {speed:,.0f} samples a second; {out}", stderr=False)
