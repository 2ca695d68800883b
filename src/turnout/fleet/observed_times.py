"""Measured devices: a run's recorded times as devices (`turnout fleet RUN --devices FILE`).

A deployment records each reply's `reply_seconds` and `training_seconds`; a simulated run its download, training and
upload separately. Either becomes the CSV that `world.devices = {kind = "device-file", path = ...}` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.running.records.records import Records
from turnout.running.records.schema import Column
from turnout.running.result import Run, open_one
from turnout.world.devices.device_draw import BYTES_OF_MEGABIT
from turnout.world.devices.device_file import DeviceRow, write_devices

WHOLE, TRAINING = "reply_seconds", "training_seconds"  # of real devices
APART = ("download_time", "train_time", "upload_time")  # of simulated ones
SHORTEST = 1e-6  # seconds: a shorter time was not measured
UNKNOWN = 10.0  # megabits a second of a link without observed transfers


@dataclass(frozen=True)
class Observation:
    """One client in one round: how long things took, and how much there was of them.

    client            its name, or its number
    samples           trained on
    bytes_down, bytes_up  transferred
    train_seconds     of training
    link_seconds      of both transfers together
    download_seconds, upload_seconds  of each transfer, if they were timed apart (as in simulated runs)
    tier              of its device
    """

    client: str
    samples: float
    bytes_down: float
    bytes_up: float
    train_seconds: float
    link_seconds: float
    download_seconds: float | None = None
    upload_seconds: float | None = None
    tier: str = "device"


@dataclass(frozen=True)
class ObservedDevices:
    """Devices as a run showed them.

    rows   one for each client
    noise  how much its rounds vary around that: the `noise` to give `DeviceFile`
    """

    rows: tuple[DeviceRow, ...]
    noise: float


def devices_of(observations: Iterable[Observation]) -> ObservedDevices:
    """One device a client, in the order in which clients appear.

    Bytes over the time that was not training are one rate for both ways, without a latency, unless download and upload
    were timed apart. Every number is the median over a client's rounds.

    >>> seen = [Observation("ada", samples=100, bytes_down=250_000, bytes_up=250_000, train_seconds=2, link_seconds=4)]
    >>> row = devices_of(seen).rows[0]
    >>> row.speed, row.down_mbps, row.up_mbps, row.latency
    (50.0, 1.0, 1.0, 0.0)
    """
    by_client: dict[str, list[Observation]] = {}
    for one in observations:
        if one.samples > 0 and one.train_seconds > 0:
            by_client.setdefault(one.client, []).append(one)
    if not by_client:
        raise UserError("no device can be made: there are no rounds in which clients trained and were timed")
    varied = list[float]()  # logarithm of the seconds of each round, around the client's own median
    for seen in by_client.values():
        whole = np.log([max(s.train_seconds + s.link_seconds, SHORTEST) for s in seen])
        varied += (whole - np.median(whole)).tolist() if len(seen) > 1 else []
    rows = tuple(_device(client, seen) for client, seen in by_client.items())
    return ObservedDevices(rows, float(np.std(varied)) if varied else 0.0)


def _device(client: str, seen: list[Observation]) -> DeviceRow:
    speed = median(s.samples / max(s.train_seconds, SHORTEST) for s in seen)
    apart = [s for s in seen if s.download_seconds is not None and s.upload_seconds is not None]
    if apart:
        down = median(s.bytes_down / max(s.download_seconds or 0.0, SHORTEST) for s in apart)
        up = median(s.bytes_up / max(s.upload_seconds or 0.0, SHORTEST) for s in apart)
    else:
        down = up = median((s.bytes_down + s.bytes_up) / max(s.link_seconds, SHORTEST) for s in seen)
    if not down or not up:  # nothing was sent, but it took time
        return DeviceRow(client, speed, UNKNOWN, UNKNOWN, 0.5 * median(s.link_seconds for s in seen), seen[0].tier)
    return DeviceRow(client, speed, down / BYTES_OF_MEGABIT, up / BYTES_OF_MEGABIT, 0.0, seen[0].tier)


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
