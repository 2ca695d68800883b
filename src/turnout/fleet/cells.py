"""Cells of a log as numbers and times; a cell that cannot be read is a fault with its line.

Shape letters: B rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from turnout.machine.table_files import TableBlock
from turnout.world.log import Faults

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
    block: TableBlock,
    column: str,
    parse: Callable[[str], float | None],
    faults: Faults,
    wanted: str,
    plain: tuple[type, float] | None = None,
) -> np.ndarray:
    """A column of numbers [B]; NaN for a cell that is not as `wanted` says, which is a fault.

    `plain`: a fast way that is tried first, for cells that are all ints, or floats, from 0 to a limit.
    """
    texts = block.cells[column]
    if plain is not None:
        try:
            values = np.array(list(map(plain[0], texts)), dtype=np.float64)
            if ((values >= 0) & (values <= plain[1])).all():
                return values
        except (ValueError, OverflowError):
            pass
    numbers = [parse(text) for text in texts]
    for i, value in enumerate(numbers):
        if value is None:
            faults.add(column, block.line_B[i], f"{column} must be {wanted}, got {texts[i]!r}")
    return np.array([math.nan if value is None else value for value in numbers], dtype=np.float64)


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

    def scale(self, time_N: np.ndarray) -> tuple[float, bool]:
        """How many of the log's units are a second, and whether times count from 1970 (else from an unknown time)."""
        if not self.numbers:
            return 1.0, True
        typical = float(np.median(time_N)) if len(time_N) else 0.0
        return next(((units, True) for least, units in _SINCE_1970 if typical >= least), (1.0, False))
