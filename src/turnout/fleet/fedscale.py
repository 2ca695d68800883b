"""Public traces of availability: FedScale's and FLASH's.

FedScale's (`client_behave_trace`) is a pickled dictionary by client id:

    {"active": [s, ...], "inactive": [s, ...], "finish_time": s, ...}

the seconds at which a device came and went; after `finish_time` its trace repeats.

Shape letters: M clients, N stays.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from turnout.errors import UserError
from turnout.fleet.rounds import LogRows
from turnout.world.log import Faults

NEEDED = ("active", "inactive", "finish_time")


def is_pickle(path: Path) -> bool:
    """Whether a file begins like a pickle of protocol 2 or later, or like an old one of a dictionary or a list."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begins = file.read(2)
    return (begins[:1] == b"\x80" and begins[1:2] <= b"\x05") or begins in (b"(d", b"(l", b"}q", b"]q")


class _PlainUnpickler(pickle.Unpickler):
    """Loads numbers, texts, lists and dictionaries; refuses every class and function, so that no code runs."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UserError(
            f"the pickle names {module}.{name}, which could run code when it is loaded: only numbers, texts, lists and "
            "dictionaries are read; convert it to CSV yourself if you trust it"
        )


def plain_data(path: Path) -> Any:
    """The data of a pickle file, or a UserError if it holds anything but plain data."""
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (pickle.UnpicklingError, ValueError, LookupError, TypeError, AttributeError, ImportError, EOFError,
            MemoryError, OverflowError) as error:  # fmt: skip
        why = str(error) or "it needs more memory than there is"
        raise UserError(f"{path} is not a complete pickle file ({why}): fetch or write it again") from error


def read_availability(path: Path) -> LogRows:
    """A trace of availability as stays from a start to an end."""
    entries = _entries(path)
    faults = Faults(str(path), "entry")
    for i, (name, entry) in enumerate(entries.items(), 1):
        length = entry["finish_time"]
        if not (isinstance(length, int | float) and 0 < length < np.inf):
            faults.add("length", i, f"finish_time of client {name} must be a number above 0, got {length!r}")
        for what in ("active", "inactive"):
            times = entry[what]
            if not isinstance(times, list) or not all(isinstance(s, int | float) and 0 <= s < np.inf for s in times):
                faults.add(what, i, f"{what} of client {name} must be a list of seconds, from 0 on")
    faults.check()
    horizon = max(float(entry["finish_time"]) for entry in entries.values())
    stays = [_stays(entry, horizon) for entry in entries.values()]
    count_M = [len(stay_N2) for stay_N2 in stays]
    stay_N2 = np.concatenate(stays)
    if not len(stay_N2):
        raise UserError(f"{path}: no client is ever active")
    return LogRows(
        path=str(path),
        form="intervals",
        names=tuple(map(str, entries)),
        code_N=np.repeat(np.arange(len(entries), dtype=np.int32), count_M),
        line_N=np.repeat(np.arange(1, len(entries) + 1, dtype=np.int32), count_M),
        time_N=stay_N2[:, 0],
        end_N=stay_N2[:, 1],
        assumed=["FedScale's availability trace: after its finish_time the trace of a client repeats"],
    )


def _entries(path: Path) -> dict[Any, dict[str, Any]]:
    """The dictionary of a trace."""
    data = plain_data(path)
    if not isinstance(data, dict) or not data or not all(isinstance(entry, dict) for entry in data.values()):
        raise UserError(
            f"{path} is a pickle, but not a FedScale trace: that is a dictionary of a dictionary for each client"
        )
    for name, entry in data.items():
        if lacking := [key for key in NEEDED if key not in entry]:
            raise UserError(
                f"{path}, client {name}: a trace of availability has {', '.join(NEEDED)}; this has no "
                f"{', '.join(lacking)}"
            )
    return data


def _stays(entry: dict[str, Any], horizon: float) -> np.ndarray:
    """(start, end) of each stay of a client, repeated until the longest trace ends [N, 2].

    Every `active` is paired with the next `inactive`. A client whose first mark is `inactive` was there from the
    beginning, and one whose last mark is `active` is there to the end.
    """
    length = float(entry["finish_time"])
    marks = sorted([(float(s), 1) for s in entry["active"]] + [(float(s), 0) for s in entry["inactive"]])
    found: list[tuple[float, float]] = []
    since = 0.0 if marks and marks[0][1] == 0 else None
    for at, comes in [*marks, (length, 0)]:
        if comes and since is None:
            since = at
        elif not comes and since is not None:
            found.append((since, min(at, length)))
            since = None
    once_N2 = np.array([pair for pair in found if pair[1] > pair[0]]).reshape(-1, 2)
    all_N2 = np.concatenate([once_N2 + k * length for k in range(int(-(-horizon // length)))])
    return np.minimum(all_N2[all_N2[:, 0] < horizon], horizon)


def is_flash(path: Path) -> bool:
    """Whether a file begins like a trace of FLASH's: a JSON object of devices with `messages`."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begins = file.read(65536).lstrip()
    return begins[:1] == b"{" and re.search(rb'"messages"\s*:\s*"[^"]*\\t', begins) is not None


def read_flash(path: Path) -> LogRows:
    """FLASH's trace of phones: a JSON object by device, with `messages`, a line `time<tab>event` for each change.

    A device is there while it is locked, charges and has Wi-Fi, as FLASH itself decides; to the last line of its trace
    if that is its last state.
    """
    try:
        devices = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} begins like a trace of FLASH's, but is not complete JSON ({error})") from error
    faults = Faults(str(path), "entry")
    stays: list[tuple[int, float, float]] = []
    for i, (name, device) in enumerate(devices.items()):
        messages = device.get("messages") if isinstance(device, dict) else None
        if not isinstance(messages, str):
            faults.add("messages", i + 1, f"device {name} has no text `messages`")
            continue
        stays += [(i, begin, end) for begin, end in _ready(messages, i + 1, str(name), faults)]
    faults.check()
    if not stays:
        raise UserError(f"{path}: no device is ever locked, charging and on Wi-Fi")
    place_N, begin_N, end_N = np.array(stays).T
    return LogRows(
        path=str(path),
        form="intervals",
        names=tuple(map(str, devices)),
        code_N=place_N.astype(np.int32),
        line_N=(place_N + 1).astype(np.int32),
        time_N=begin_N,
        end_N=end_N,
        is_calendar=True,
        zone="times without a time zone are read as UTC: if they are local, hours of the day are local too",
        assumed=["FLASH's trace: a device is there while it is locked, charges and has Wi-Fi"],
    )


FLASH_STATES = {
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
}


def _ready(messages: str, entry: int, name: str, faults: Faults) -> Iterator[tuple[float, float]]:
    """(start, end) of each stay of a device."""
    state = dict.fromkeys(("locked", "wifi", "charging"), False)
    since: float | None = None
    now = 0.0
    for line in messages.splitlines():
        time, _, event = line.strip().partition("\t")
        if not time:
            continue
        try:
            now = datetime.fromisoformat(time.strip()).replace(tzinfo=UTC).timestamp()
        except ValueError:
            faults.add("time", entry, f"a message of device {name} begins with {time!r}, which is not a time")
            return
        what, value = FLASH_STATES.get(event.strip().lower(), ("", False))
        if what:
            state[what] = value
        if all(state.values()) and since is None:
            since = now
        elif since is not None and not all(state.values()):
            yield since, now
            since = None
    if since is not None and now > since:
        yield since, now
