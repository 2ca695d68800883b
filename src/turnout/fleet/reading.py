"""How a fleet's log is to be read: which column is which, how long a round is, what a missing row means; and cells as
numbers and times, where one that cannot be read is a fault with its line.

Every setting has a default. Guesses are listed in `ParticipationLog.assumed`.

Shape letters: B rows of a block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Literal, get_args

import numpy as np

from turnout.errors import UserError, nearest
from turnout.fleet.participation_log import Missing
from turnout.machine.table_files import TableBlock
from turnout.world.log import Faults

Gaps = Literal["outage", "skip"]
Source = Literal["flower", "nvflare"]
NO_COLUMN = "none"  # in place of the name of a column
ROLES = ("round", "client", "work", "time", "start", "end", "examples", "label")  # that a column can have

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
    "label": ("label", "mainlabel", "labels"),
}
# Names that are also recognised when they are misspelt. A log must have a client, and a round or a time, anyway.
EASILY_MISSPELT = {
    "work": ("work", "workdone", "fraction", "completed", "completion", "progress", "percent"),
    "examples": ("examples", "samples", "numexamples", "numsamples"),
}
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNIT_WORDS = {"hour": "h", "hr": "h", "minute": "min", "day": "d", "week": "w", "second": "s", "": "s"}


@dataclass(frozen=True)
class Reading:
    """How to read a log; None is guessed.

    round, client, work, time, start, end, examples, label   the column of each, by its name in the log; "none": the
                  log has no such column
    every         how long a round is if the log has times and no rounds: "15min", "1h", "1d"
    missing       what it means that a client has no row in a round: "absent" or "not-asked"
    gaps          days without any client: an "outage" of the fleet, or holes in the log, to "skip"
    time_format   how times are written, as in Python's strptime, if they are neither ISO 8601 nor numbers
    full_work     the number in the work column that means all of the work: 100 for percent, 5 for five epochs
    first_round   the number of the log's first round
    owners        a CSV file of client,owner, for a log whose clients have other names than the data's owners
    since         leave out what is before this time (ISO 8601), or this round (counted from 0)
    skip_faulty   leave out faulty rows, and say how many
    table         the table of a database that has several
    source        whose server's log it is, "flower" or "nvflare"; None: a table or a trace
    """

    round: str | None = None
    client: str | None = None
    work: str | None = None
    time: str | None = None
    start: str | None = None
    end: str | None = None
    examples: str | None = None
    label: str | None = None
    every: str | None = None
    missing: Missing | None = None
    gaps: Gaps = "outage"
    time_format: str | None = None
    full_work: float = 1.0
    first_round: int | None = None
    owners: str | None = None
    since: str | None = None
    skip_faulty: bool = False
    table: str | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        if self.source is not None and self.source not in get_args(Source):
            raise UserError(f"--from {self.source}: {nearest(self.source, get_args(Source))}")
        if self.since is not None and self.since_number() is None:
            raise UserError(f"--since {self.since}: write a time such as 2026-03-01T14:30, or the number of a round")
        if self.missing is not None and self.missing not in get_args(Missing):
            raise UserError(f"missing = {self.missing!r}: {nearest(self.missing, get_args(Missing))}")
        if self.gaps not in get_args(Gaps):
            raise UserError(f"gaps = {self.gaps!r}: {nearest(self.gaps, get_args(Gaps))}")
        if not 0 < self.full_work < float("inf"):
            raise UserError(f"full_work = {self.full_work}: it is the number that means all of the work, above 0")
        if self.every is not None:
            seconds(self.every)

    def settings(self) -> dict[str, str | int | float]:
        """The settings that differ from their defaults.

        >>> Reading(client="who", every="1h").settings()
        {'client': 'who', 'every': '1h'}
        """
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def since_number(self) -> tuple[float, bool] | None:
        """`since` as a number, and whether it is a time in seconds (else a round); None if it is neither."""
        text = self.since or ""
        if text.isdecimal():
            return float(text), False
        time = TimeReader(False).read(text)
        return None if time is None else (time, True)

    def columns(self, header: list[str], path: str) -> dict[str, str]:
        """The column of each role that the log has: as set, else by its usual names. A column has one role."""
        given = {role: getattr(self, role) for role in ROLES if getattr(self, role) is not None}
        columns = {role: name for role, name in given.items() if name != NO_COLUMN or name in header}
        for role, name in columns.items():
            if name not in header:
                raise UserError(f"{path} has no column {name!r} for {role}: {nearest(name, header)}")
        taken = set(columns.values())
        free = {re.sub(r"[\W_]", "", name.casefold()): name for name in reversed(header) if name not in taken}
        for role, usual in USUAL_NAMES.items():
            found = next((name for name in usual if name in free), None)
            if role not in given and found is not None:
                columns[role] = free.pop(found)
        for role, usual in EASILY_MISSPELT.items():
            if role in given or role in columns:
                continue
            for plain, name in free.items():
                if meant := next((known for known in usual if one_slip(plain, known)), None):
                    raise UserError(
                        f"{path}: is the column {name!r} a misspelt {meant!r}? Rename it, or say so: --{role} {name} "
                        f"reads it, --{role} {NO_COLUMN} does not"
                    )
        return columns


def one_slip(word: str, known: str) -> bool:
    """Whether one letter is missing, too many, wrong, or has changed places with the next.

    >>> one_slip("wrk", "work"), one_slip("wokr", "work"), one_slip("words", "work"), one_slip("work", "work")
    (True, True, False, False)
    """
    at = next((i for i, (a, b) in enumerate(zip(word, known, strict=False)) if a != b), min(len(word), len(known)))
    (mine, theirs), apart = (word[at:], known[at:]), len(word) - len(known)
    if apart:
        return abs(apart) == 1 and (mine[1:] == theirs if apart > 0 else mine == theirs[1:])
    return word != known and (mine[1:] == theirs[1:] or mine[:2][::-1] + mine[2:] == theirs)


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


WORDS = {
    **dict.fromkeys(("true", "yes", "ok", "completed", "finished", "success"), 1.0),
    **dict.fromkeys(("false", "no", "failed", "absent", "timeout", "dropped"), 0.0),
}
# Other ways to write times; of 3/4/2026 only the log's owner knows which is the month, so the format must be given.
_OTHER_DATES = ("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d %b %Y", "%b %d, %Y")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", ", %H:%M:%S", ", %H:%M")
# From which size on numbers are times since 1970, and in which part of a second.
_SINCE_1970 = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (3e8, 1.0))


def column_of(
    block: TableBlock, column: str, parse: Callable[[str], float | None], faults: Faults, wanted: str
) -> np.ndarray:
    """A column of numbers [B]; NaN for a cell that is not as `wanted` says, which is a fault."""
    texts = block.cells[column]
    of_text = {text: parse(text) for text in set(texts)}
    for i, text in enumerate(texts) if None in of_text.values() else ():
        if of_text[text] is None:
            faults.add(column, block.line_B[i], f"{column} must be {wanted}, got {text!r}")
    number_of = {text: math.nan if value is None else value for text, value in of_text.items()}
    return np.fromiter(map(number_of.__getitem__, texts), np.float64, len(texts))


def whole(text: str) -> float | None:
    """A whole number, also written as 3.0.

    >>> whole("12"), whole("12.0"), whole("1.5"), whole("x")
    (12, 12.0, None, None)
    """
    try:
        return int(text)
    except ValueError:
        value = number(text)
        return value if value is not None and value.is_integer() and abs(value) < 2**53 else None


def number(text: str) -> float | None:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def count(text: str) -> float | None:
    """A number from 0."""
    value = number(text)
    return value if value is not None and value >= 0 else None


def share(full_work: float, decimal_comma: bool) -> Callable[[str], float | None]:
    """A reader of work cells: a number up to `full_work`, a percentage, or a word for all or nothing.

    >>> read = share(full_work=5, decimal_comma=True)
    >>> read("2,5"), read("40%"), read("failed"), read("7"), read("most")
    (0.5, 0.4, 0.0, None, None)
    """

    def read(text: str) -> float | None:
        if text.casefold() in WORDS:
            return WORDS[text.casefold()]
        plain = text.removesuffix("%").strip()
        value = number(plain.replace(",", ".") if decimal_comma else plain)
        if value is None:
            return None
        value = value / 100 if text.endswith("%") else value / full_work
        return value if 0 <= value <= 1 else None

    return read


@dataclass(frozen=True)
class TimeReader:
    """Reads times as seconds. The first cell of a log decides whether they are numbers or dates.

    numbers  whether times are numbers
    form     the format of dates, as for strptime; None for ISO 8601
    """

    numbers: bool
    form: str | None = None

    @classmethod
    def for_cell(cls, first: str, form: str | None) -> TimeReader:
        return cls(form is None and number(first) is not None, form)

    def wanted(self, unread: list[str]) -> str:
        """What a time must look like; if some could not be read, with the --time-format that reads them all."""
        if self.numbers:
            return "a time as a number, like the first of the log"
        shown = datetime(2026, 3, 1, 14, 30).strftime(self.form or "%Y-%m-%d %H:%M")
        if self.form:
            return f"a time such as {shown!r}"
        forms = (date + clock for date in _OTHER_DATES for clock in _CLOCKS)
        fit = [form for form in forms if unread and all(TimeReader(False, form).read(text) for text in unread)]
        here = f", here {' or '.join(map(repr, fit[:2]))}" if fit else ""
        return f"a time such as {shown!r} (ISO 8601; other formats by --time-format{here})"

    def read(self, text: str) -> float | None:
        """Seconds since 1970, or the number as it is."""
        if self.numbers:
            return number(text)
        try:
            found = datetime.strptime(text, self.form) if self.form else datetime.fromisoformat(text)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None

    def zone(self, timed: bool, is_calendar: bool) -> str | None:
        """What is assumed about the time zone; None for a log without times, or without a calendar."""
        if not timed or not is_calendar:
            return None
        if self.numbers:
            return "times since 1970 are read as UTC, so hours of the day are UTC's"
        return "times without a time zone are read as UTC: if they are local, hours of the day are local too"

    def scale(self, time_N: np.ndarray) -> tuple[float, bool]:
        """How many of the log's units are a second, and whether times count from 1970 (else from an unknown time)."""
        if not self.numbers:
            return 1.0, True
        typical = float(np.median(time_N)) if len(time_N) else 0.0
        return next(((units, True) for least, units in _SINCE_1970 if typical >= least), (1.0, False))
