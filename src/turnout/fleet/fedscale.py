"""FedScale's availability trace (`client_behave_trace`), a pickled dictionary by client id:

    {"active": [s, ...], "inactive": [s, ...], "finish_time": s, ...}

the seconds at which a device came and went; after `finish_time` its trace repeats.

Shape letters: M clients, N stays.
"""

from __future__ import annotations

import pickle
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
