"""FedScale's two traces, each a pickled dictionary by client id:

availability (`client_behave_trace`)   {"active": [s, ...], "inactive": [s, ...], "finish_time": s, ...}: the seconds
                                       at which a device came and went; after `finish_time` its days begin anew
capacity (`client_device_capacity`)    {"computation": ms, "communication": kbit/s}: milliseconds a sample takes in
                                       inference, and the rate of the link

How long a round takes is FedScale's own rule: training a sample takes three times its inference, and the model crosses
the link twice.

Shape letters: M clients, N stretches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import UserError
from turnout.fleet.faults import Faults
from turnout.fleet.plain_pickle import plain_data
from turnout.fleet.rows import LogRows

AVAILABILITY, CAPACITY = ("active", "inactive", "finish_time"), ("computation", "communication")
TRAINING = 3.0  # times the inference of a sample


@dataclass(frozen=True)
class Capacities:
    """How fast devices are: seconds to train on a sample, and megabytes a second over the link [M]."""

    names: tuple[str, ...]
    sample_seconds_M: np.ndarray
    megabytes_a_second_M: np.ndarray

    def of(self, names: tuple[str, ...]) -> np.ndarray:
        """Which device each client has: its own, else one after the other."""
        place = {name: i for i, name in enumerate(self.names)}
        return np.array([place.get(name, i % len(self.names)) for i, name in enumerate(names)])


def read_capacity(path: str | Path) -> Capacities:
    """A trace of device capacities."""
    entries = _entries(Path(path), CAPACITY, "a trace of device capacities")
    faults = Faults(str(path), "entry")
    for i, (name, entry) in enumerate(entries.items(), 1):
        for what in CAPACITY:
            if not (isinstance(entry[what], int | float) and 0 < entry[what] < np.inf):
                faults.add(what, i, f"{what} of client {name} must be a number above 0, got {entry[what]!r}")
    faults.check()
    found = {what: np.array([float(entry[what]) for entry in entries.values()]) for what in CAPACITY}
    return Capacities(
        tuple(map(str, entries)), TRAINING * found["computation"] / 1000, found["communication"] / 8 / 1000
    )


def read_availability(path: Path) -> LogRows:
    """A trace of availability as stretches from a start to an end."""
    entries = _entries(path, AVAILABILITY, "a trace of availability")
    faults = Faults(str(path), "entry")
    for i, (name, entry) in enumerate(entries.items(), 1):
        _check(i, name, entry, faults)
    faults.check()
    horizon = max(float(entry["finish_time"]) for entry in entries.values())
    parts = [_stretches(entry, horizon) for entry in entries.values()]
    count_M = [len(part) for part in parts]
    stretch_N2 = np.concatenate([part for part in parts if len(part)]) if any(count_M) else np.empty((0, 2))
    if not len(stretch_N2):
        raise UserError(f"{path}: no client is ever active")
    return LogRows(
        path=str(path),
        form="intervals",
        names=tuple(map(str, entries)),
        code_N=np.repeat(np.arange(len(entries), dtype=np.int32), count_M),
        line_N=np.repeat(np.arange(1, len(entries) + 1, dtype=np.int32), count_M),
        time_N=stretch_N2[:, 0],
        end_N=stretch_N2[:, 1],
        clock="relative",
        said=["FedScale's availability trace: after its finish_time the days of a client begin anew"],
    )


def _entries(path: Path, needed: tuple[str, ...], what: str) -> dict[Any, dict[str, Any]]:
    """The dictionary of a trace; a UserError says which of the two formats it is, if it is the other."""
    data = plain_data(path)
    if not isinstance(data, dict) or not data or not all(isinstance(entry, dict) for entry in data.values()):
        raise UserError(
            f"{path} is a pickle, but no FedScale trace: that is a dictionary of a dictionary for each client"
        )
    first = next(iter(data.values()))
    if needed == AVAILABILITY and set(CAPACITY) <= set(first):
        raise UserError(
            f"{path} says how fast devices are, not when they were there: give the trace of availability as the log, "
            f"and this one with --capacity {path}"
        )
    for name, entry in data.items():
        if lacking := [key for key in needed if key not in entry]:
            raise UserError(f"{path}, client {name}: {what} has {', '.join(needed)}; this has no {', '.join(lacking)}")
    return data


def _check(place: int, name: Any, entry: dict[str, Any], faults: Faults) -> None:
    length = entry["finish_time"]
    if not (isinstance(length, int | float) and 0 < length < np.inf):
        faults.add("length", place, f"finish_time of client {name} must be a number above 0, got {length!r}")
    for what in ("active", "inactive"):
        times = entry[what]
        if not isinstance(times, list) or not all(isinstance(s, int | float) and 0 <= s < np.inf for s in times):
            faults.add(what, place, f"{what} of client {name} must be a list of seconds, from 0 on")


def _stretches(entry: dict[str, Any], horizon: float) -> np.ndarray:
    """(start, end) of each stretch of a client, repeated until the longest trace ends [N, 2].

    Every `active` is paired with the next `inactive`; one that is inactive before it is ever active was there from the
    beginning, and one that is active at last is there to its end.
    """
    length = float(entry["finish_time"])
    marks = sorted([(float(s), 1) for s in entry["active"]] + [(float(s), 0) for s in entry["inactive"]])
    found: list[tuple[float, float]] = []
    since = 0.0 if marks and marks[0][1] == 0 else None
    for at, comes in marks:
        if comes and since is None:
            since = at
        elif not comes and since is not None:
            found.append((since, min(at, length)))
            since = None
    if since is not None and since < length:
        found.append((since, length))
    once_N2 = np.array([pair for pair in found if pair[1] > pair[0]]).reshape(-1, 2)
    times = int(-(-horizon // length))
    all_N2 = np.concatenate([once_N2 + k * length for k in range(times)]) if len(once_N2) else once_N2
    return np.minimum(all_N2[all_N2[:, 0] < horizon], horizon) if len(all_N2) else all_N2
