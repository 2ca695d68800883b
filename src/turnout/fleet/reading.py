"""How a fleet's log is to be read: which column is which, how long a round is, what a missing row means.

Every setting has a default. Guesses are listed in `ParticipationLog.assumed`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal, get_args

from turnout.errors import UserError, nearest
from turnout.fleet.participation_log import Missing

Gaps = Literal["outage", "skip"]
ROLES = ("round", "client", "work", "time", "start", "end", "examples")  # that a column can have

# What logs call their columns, the surest name first; compared without case, spaces and punctuation.
USUAL_NAMES = {
    "round": ("round", "rounds", "serverround", "globalround", "roundid", "roundnumber", "t", "step", "iteration"),
    "client": (
        *("client", "clientid", "cid", "device", "deviceid", "user", "userid", "node", "nodeid", "participant"),
        *("worker", "workerid", "clientname", "devicename", "host", "hostname", "phone", "handset", "imei", "serial"),
        *("serialnumber", "uuid", "who", "name", "id"),
    ),
    "work": (
        *("work", "workdone", "fraction", "completed", "completion", "progress", "share", "sharedone", "done"),
        *("finished", "fractiondone", "percent", "percentdone"),
    ),
    "start": (
        *("start", "starttime", "startedat", "begin", "begintime", "from", "connected", "connectedat", "online"),
        *("active", "sessionstart", "on", "up"),
    ),
    "end": (
        *("end", "endtime", "endedat", "stop", "stoptime", "to", "until", "disconnected", "disconnectedat", "offline"),
        *("inactive", "sessionend", "off", "down"),
    ),
    "time": (
        *("time", "timestamp", "datetime", "date", "ts", "checkin", "checkintime", "checkedin", "checkedinat"),
        *("seen", "seenat", "lastseen", "when", "at", "eventtime", "createdat"),
    ),
    "examples": ("examples", "samples", "numexamples", "numsamples", "nexamples", "nsamples", "datasize"),
}
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT_WORDS = {"hour": "h", "hr": "h", "minute": "min", "day": "d", "week": "w", "second": "s", "": "s"}


@dataclass(frozen=True)
class Reading:
    """How to read a log; None is guessed.

    round, client, work, time, start, end, examples   the column of each, by its name in the log
    every         how long a round is if the log has times and no rounds: "15min", "1h", "1d"
    missing       what it means that a client has no row in a round: "absent" or "not-asked"
    gaps          days without any client: an "outage" of the fleet, or holes in the log, to "skip"
    separator     the character between the cells of a CSV
    time_format   how times are written, as in Python's strptime, if they are neither ISO 8601 nor numbers
    full_work     the number in the work column that means all of the work: 100 for percent, 5 for five epochs
    first_round   the number of the log's first round
    capacity      FedScale's trace of device capacities, for a log that says from when to when clients were there
    samples       with capacity: how many samples a round asks to train on
    megabytes     with capacity: the size of the model
    deadline      with capacity: how long a round may take; None: as long as the round
    owners        a CSV file of client,owner, for a log whose clients have other names than the data's owners
    """

    round: str | None = None
    client: str | None = None
    work: str | None = None
    time: str | None = None
    start: str | None = None
    end: str | None = None
    examples: str | None = None
    every: str | None = None
    missing: Missing | None = None
    gaps: Gaps = "outage"
    separator: str | None = None
    time_format: str | None = None
    full_work: float = 1.0
    first_round: int | None = None
    capacity: str | None = None
    samples: int | None = None
    megabytes: float | None = None
    deadline: str | None = None
    owners: str | None = None

    def __post_init__(self) -> None:
        if self.missing is not None and self.missing not in get_args(Missing):
            raise UserError(f"missing = {self.missing!r}: {nearest(self.missing, get_args(Missing))}")
        if self.gaps not in get_args(Gaps):
            raise UserError(f"gaps = {self.gaps!r}: {nearest(self.gaps, get_args(Gaps))}")
        if not 0 < self.full_work < float("inf"):
            raise UserError(f"full_work = {self.full_work}: it is the number that means all of the work, above 0")
        if self.separator is not None and len(self.separator) != 1:
            raise UserError(f"separator = {self.separator!r}: give one character, such as ';'")
        for length in filter(None, (self.every, self.deadline)):
            seconds(length)
        asked = (self.samples, self.megabytes)
        if self.capacity is not None and not all(value is not None and value > 0 for value in asked):
            raise UserError("with a capacity trace, give what a round asks: samples and megabytes, both above 0")
        if self.capacity is None and any(value is not None for value in (*asked, self.deadline)):
            raise UserError("samples, megabytes and deadline are for a capacity trace: give capacity = FILE too")

    def settings(self) -> dict[str, str | int | float]:
        """The settings that differ from their defaults.

        >>> Reading(client="who", every="1h").settings()
        {'client': 'who', 'every': '1h'}
        """
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def columns(self, header: list[str], path: str) -> dict[str, str]:
        """The column of each role that the log has: as set, else by its usual names. A column has one role."""
        columns = {role: getattr(self, role) for role in ROLES if getattr(self, role) is not None}
        for role, name in columns.items():
            if name not in header:
                raise UserError(f"{path} has no column {name!r} for {role}: {nearest(name, header)}")
        taken = set(columns.values())
        free = {re.sub(r"[\W_]", "", name.casefold()): name for name in reversed(header) if name not in taken}
        for role, usual in USUAL_NAMES.items():
            found = next((name for name in usual if name in free), None)
            if role not in columns and found is not None:
                columns[role] = free.pop(found)
        return columns


def seconds(duration: str) -> float:
    """A duration in seconds.

    >>> seconds("1h"), seconds("90 min"), seconds("0.5d"), seconds("300")
    (3600.0, 5400.0, 43200.0, 300.0)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", duration.casefold())
    word = found[2].removesuffix("s") if found else ""
    unit = _UNIT_WORDS.get(word, word)
    if found is None or unit not in _UNITS or float(found[1]) == 0:
        raise UserError(f"{duration!r} is not a duration: write a number and s, min, h, d or w, such as 15min or 1h")
    return float(found[1]) * _UNITS[unit]
