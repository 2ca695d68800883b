"""Devices from what was observed: seconds, bytes and samples of clients in rounds become one row a client.

What a server sees of a reply is how long it took in all, and how long the client says that it trained; the rest is the
link. Bytes over that rest are one rate for both ways, without a latency of its own, unless download and upload were
timed apart (as in simulated runs). Every number is the median over a client's rounds, so that one stall is not a trait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from turnout.errors import UserError
from turnout.world.devices.base import BYTES_OF_MEGABIT
from turnout.world.devices.device_file import DeviceRow

SHORTEST = 1e-6  # seconds: what is faster than this was not measured
UNKNOWN = 10.0  # megabits a second of a link over which nothing was seen to go


@dataclass(frozen=True)
class Observation:
    """One client in one round: how long things took, and how much there was of them.

    link_seconds  both transfers together, where they were not timed apart; else `download_seconds` and
                  `upload_seconds`
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
    """A row a client, and how much their rounds vary around it: the `noise` to give `DeviceFile`."""

    rows: tuple[DeviceRow, ...]
    noise: float


def devices_of(observations: Iterable[Observation]) -> ObservedDevices:
    """One device a client, in the order in which clients appear.

    >>> seen = [Observation("ada", samples=100, bytes_down=250_000, bytes_up=250_000, train_seconds=2, link_seconds=4)]
    >>> row = devices_of(seen).rows[0]
    >>> row.speed, row.down_mbps, row.up_mbps, row.latency
    (50.0, 1.0, 1.0, 0.0)
    """
    by_client: dict[str, list[Observation]] = {}
    for seen in observations:
        if seen.samples > 0 and seen.train_seconds > 0:
            by_client.setdefault(seen.client, []).append(seen)
    if not by_client:
        raise UserError("nothing was observed that makes a device: rounds in which clients trained and were timed")
    rows = tuple(_device(client, seen) for client, seen in by_client.items())
    return ObservedDevices(rows, _noise(by_client))


def _device(client: str, seen: list[Observation]) -> DeviceRow:
    speed = median(s.samples / max(s.train_seconds, SHORTEST) for s in seen)
    apart = [s for s in seen if s.download_seconds is not None and s.upload_seconds is not None]
    if apart:
        down = median(s.bytes_down / max(s.download_seconds or 0.0, SHORTEST) for s in apart)
        up = median(s.bytes_up / max(s.upload_seconds or 0.0, SHORTEST) for s in apart)
    else:
        down = up = median((s.bytes_down + s.bytes_up) / max(s.link_seconds, SHORTEST) for s in seen)
    if not down or not up:  # nothing was sent, which took its time nevertheless
        return DeviceRow(client, speed, UNKNOWN, UNKNOWN, 0.5 * median(s.link_seconds for s in seen), seen[0].tier)
    return DeviceRow(client, speed, down / BYTES_OF_MEGABIT, up / BYTES_OF_MEGABIT, 0.0, seen[0].tier)


def _noise(by_client: dict[str, list[Observation]]) -> float:
    """The deviation of the logarithm of what a round took, around each client's own median."""
    apart = list[float]()
    for seen in by_client.values():
        whole = np.log([max(s.train_seconds + s.link_seconds, SHORTEST) for s in seen])
        apart += (whole - np.median(whole)).tolist() if len(seen) > 1 else []
    return float(np.std(apart)) if apart else 0.0
