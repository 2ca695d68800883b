"""A run's recorded times as devices: what `--devices FILE` of `turnout fleet` and `turnout export` writes.

A deployment records each reply's `reply_seconds` and `training_seconds`; a simulated run its download, training and
upload apart. Either becomes the CSV that `world.devices = {kind = "device-file", path = ...}` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.records.records import Records
from turnout.running.records.schema import Column
from turnout.running.result import Run, open_one
from turnout.world.devices.device_file import Observation, ObservedDevices, devices_of, write_devices

WHOLE, TRAINING = "reply_seconds", "training_seconds"  # of real devices
APART = ("download_time", "train_time", "upload_time")  # of simulated ones


def write_observed_devices(run: Run | str | Path, path: str | Path) -> ObservedDevices:
    """Write the devices that a run's times make; what they are, for who wants to say so."""
    opened = run if isinstance(run, Run) else open_one(run)
    found = observed_devices(opened)
    write_devices(path, found.rows)
    return found


def observed_devices(run: Run) -> ObservedDevices:
    """One device a client of a run."""
    names = run.data().names
    with run.records() as records:
        return devices_of(observations(records, run.experiment, names))


def observations(records: Records, experiment: Experiment, names: tuple[str, ...] | None) -> Iterator[Observation]:
    """What each client took in each round in which its reply was used."""
    columns = records.clients()
    simulated = APART[0] in columns
    if not simulated and not {WHOLE, TRAINING} <= columns.keys():
        raise UserError(
            f"{records.path} has no times of clients: only a deployment records them (reply_seconds, "
            "training_seconds), and a run with world.devices"
        )
    column = {name: _floats(columns, name) for name in ("work", "examples", "bytes_up", "bytes_down")}
    parts = [_floats(columns, name) for name in (APART if simulated else (WHOLE, TRAINING))]
    tiers = _tiers(records)
    for i, client in enumerate(columns["client"].tolist()):
        took = [float(part[i]) for part in parts]
        if not (column["work"][i] > 0 and all(np.isfinite(took)) and np.isfinite(column["bytes_up"][i])):
            continue
        down, train, up = took if simulated else (None, took[1], None)
        yield Observation(
            client=names[client] if names else str(client),
            samples=float(column["work"][i]) * _full_samples(experiment, float(column["examples"][i])),
            bytes_down=float(column["bytes_down"][i]),
            bytes_up=float(column["bytes_up"][i]),
            train_seconds=train or 0.0,
            link_seconds=(down or 0.0) + (up or 0.0) if simulated else max(took[0] - took[1], 0.0),
            download_seconds=down,
            upload_seconds=up,
            tier=tiers[int(columns["tier"][i])] if tiers and "tier" in columns else "device",
        )


def _full_samples(experiment: Experiment, examples: float) -> float:
    """Samples that complete work uses: epochs over all of them, or so many batches (the last of a pass is smaller)."""
    local = experiment.algorithm.local
    if local.steps is None:
        return examples * local.full_work
    per_pass = max(1.0, np.ceil(examples / local.batch_size))
    return examples * local.steps / per_pass


def _floats(columns: dict[str, Column], name: str) -> Column:
    return columns[name].astype(np.float64) if name in columns else np.full(len(columns["client"]), np.nan)


def _tiers(records: Records) -> tuple[str, ...]:
    said = records.rounds().get("tiers")
    first = next((words for words in said.tolist() if isinstance(words, str)), "") if said is not None else ""
    return tuple(first.split())
