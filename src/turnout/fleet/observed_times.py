"""Measured devices: a run's recorded times as devices (`turnout fleet RUN --devices FILE`).

A deployment records each reply's `reply_seconds` and `training_seconds`; a simulated run its download, training and
upload separately. Either becomes the CSV that `world.devices = {kind = "device-file", path = ...}` reads.
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
    """Write the devices that a run's times give, and return them."""
    opened = run if isinstance(run, Run) else open_one(run)
    with opened.records() as records:
        found = devices_of(observations(records, opened.experiment, opened.data().names))
    write_devices(path, found.rows)
    return found


def observations(records: Records, experiment: Experiment, names: tuple[str, ...] | None) -> Iterator[Observation]:
    """The times of each client in each round in which its reply was used."""
    columns = records.clients()
    simulated = APART[0] in columns
    if not simulated and not {WHOLE, TRAINING} <= columns.keys():
        raise UserError(
            f"{records.path} has no times of clients: only a deployment records them (reply_seconds, "
            "training_seconds), and a run with world.devices"
        )
    column = {name: _floats(columns, name) for name in ("work", "examples", "bytes_up", "bytes_down")}
    local = experiment.algorithm.local
    parts = [_floats(columns, name) for name in (APART if simulated else (WHOLE, TRAINING))]
    recorded = records.rounds().get("tiers")
    texts = [] if recorded is None else [words for words in recorded.tolist() if isinstance(words, str)]
    tiers = tuple(texts[0].split()) if texts else ()
    for i, client in enumerate(columns["client"].tolist()):
        took = [float(part[i]) for part in parts]
        if not (column["work"][i] > 0 and all(np.isfinite(took)) and np.isfinite(column["bytes_up"][i])):
            continue
        down, train, up = took if simulated else (None, took[1], None)
        examples = float(column["examples"][i])
        batches = max(1.0, np.ceil(examples / local.batch_size))  # of a pass; the last one is smaller
        full = examples * local.full_work if local.steps is None else examples * local.steps / batches
        yield Observation(
            client=names[client] if names else str(client),
            samples=float(column["work"][i]) * full,
            bytes_down=float(column["bytes_down"][i]),
            bytes_up=float(column["bytes_up"][i]),
            train_seconds=train or 0.0,
            link_seconds=(down or 0.0) + (up or 0.0) if simulated else max(took[0] - took[1], 0.0),
            download_seconds=down,
            upload_seconds=up,
            tier=tiers[int(columns["tier"][i])] if tiers and "tier" in columns else "device",
        )


def _floats(columns: dict[str, Column], name: str) -> Column:
    return columns[name].astype(np.float64) if name in columns else np.full(len(columns["client"]), np.nan)
