"""Cuts times into rounds: check-ins, and stretches from a start to an end.

Shape letters: N rows of the log, A rows of the record, T rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from turnout.errors import UserError
from turnout.fleet.faults import Faults
from turnout.fleet.reading import Reading, duration, seconds
from turnout.fleet.rows import MOST_ROUNDS, LogRows, Rounds, largest

MOST_ROWS = 400_000_000  # that intervals may become
USUAL_ROUNDS = (60.0, 300.0, 900.0, 3600.0)  # seconds; tried from the longest on


def rounds_of_check_ins(rows: LogRows, reading: Reading, faults: Faults) -> Rounds:
    """Rows that say when a client came; several of one client within a round are one."""
    assert rows.time_N is not None
    grid = _grid(rows, reading, float(rows.time_N.max()), faults)
    round_N = ((rows.time_N - grid.begin) // grid.every).astype(np.int64)
    work_N = np.ones(len(round_N)) if rows.work_N is None else rows.work_N
    pair_A, work_A = _largest_of_pairs(round_N * len(rows.names) + rows.code_N, work_N)
    again = len(round_N) - len(pair_A)
    said = [f"{again:,} check-ins of clients that had come in the same round already count once"] if again else []
    return grid.rounds_of(pair_A, work_A, len(rows.names), said)


def rounds_of_intervals(rows: LogRows, reading: Reading, faults: Faults) -> Rounds:
    """Rows that say from when to when a client was there: its work is the share of a round that it was there."""
    assert rows.time_N is not None
    assert rows.end_N is not None
    closed_N = np.isfinite(rows.end_N)
    last = float(max(rows.time_N.max(), rows.end_N[closed_N].max(initial=-np.inf)))
    end_N = np.where(closed_N, rows.end_N, last)
    grid = _grid(rows, reading, max(last - 1e-6, float(rows.time_N.max())), faults)
    first_N = ((rows.time_N - grid.begin) // grid.every).astype(np.int64)
    count_N = np.maximum(np.ceil((end_N - grid.begin) / grid.every).astype(np.int64) - first_N, 1)
    if count_N.sum() > MOST_ROWS:
        raise UserError(
            f"{rows.path}: rounds of {duration(grid.every)} make {count_N.sum():,} rows; take a longer --every"
        )
    of_A = np.repeat(np.arange(len(first_N)), count_N)
    round_A = first_N[of_A] + np.arange(len(of_A)) - np.repeat(count_N.cumsum() - count_N, count_N)
    begin_A = grid.begin + round_A * grid.every
    there_A = np.minimum(end_N[of_A], begin_A + grid.every) - np.maximum(rows.time_N[of_A], begin_A)
    key_A = round_A * len(rows.names) + rows.code_N[of_A]
    if rows.work_N is not None:
        pair_A, work_A = _largest_of_pairs(key_A, rows.work_N[of_A])
        said = ["the work of a stretch is the work of each of its rounds"]
    else:
        pair_A, inverse_A = np.unique(key_A, return_inverse=True)
        seconds_A = np.clip(np.bincount(inverse_A, weights=there_A), 0, grid.every)
        pair_A, work_A, said = _while_there(pair_A, seconds_A, rows, grid)
    if not closed_N.all():
        said.append(f"{int((~closed_N).sum()):,} stretches without an end last to the end of the log")
    return grid.rounds_of(pair_A, work_A, len(rows.names), said)


def _while_there(
    pair_A: np.ndarray, seconds_A: np.ndarray, rows: LogRows, grid: _Grid
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The work done in so many seconds of a round; a client that was there but finished nothing keeps its row."""
    pair_A, seconds_A = pair_A[seconds_A > 0], seconds_A[seconds_A > 0]
    if rows.effort is None:
        return pair_A, seconds_A / grid.every, ["work is the share of a round that a client was there"]
    work_A = rows.effort.work(pair_A % len(rows.names), seconds_A)
    nothing = float((work_A == 0).mean())
    said = (
        f"work is what a device of the capacity trace finishes while it is there; nothing, {nothing:.0%} of the times"
    )
    return pair_A, work_A, [said]


@dataclass(frozen=True)
class _Grid:
    """Rounds of equal length from a beginning on."""

    begin: float
    every: float
    rounds: int
    said: list[str]

    def rounds_of(self, pair_A: np.ndarray, work_A: np.ndarray, clients: int, said: list[str]) -> Rounds:
        round_A, code_A = np.divmod(pair_A, clients)
        start_T = self.begin + self.every * np.arange(self.rounds)
        return Rounds(round_A, code_A, work_A, self.rounds, start_T, self.every, [*self.said, *said])


def _grid(rows: LogRows, reading: Reading, last: float, faults: Faults) -> _Grid:
    """Rounds over the times of a log; on a calendar an hour begins at a full hour, a day at midnight."""
    assert rows.time_N is not None
    first = float(rows.time_N.min())
    every = seconds(reading.every) if reading.every is not None else _usual_round(last - first)
    begin = first // every * every
    rounds = int((last - begin) // every) + 1
    if rounds > MOST_ROUNDS:
        for n in (rows.time_N.argmin(), rows.time_N.argmax()):
            many = f"{rounds:,}" if rounds < 10**15 else f"{rounds:.0e}"
            words = f"with rounds of {duration(every)} the log has {many} of them: is this time right? {{}}"
            faults.add("span", int(rows.line_N[n]), words.format(_shown(float(rows.time_N[n]), rows.clock)))
        faults.check()
    said = [] if reading.every is not None else [f"a round is {duration(every)} (--every says otherwise)"]
    if rows.clock == "relative":
        said.append("times are seconds since an unknown hour of an unknown day")
    return _Grid(begin, every, rounds, said)


def _usual_round(span: float) -> float:
    """An hour for a log of a day or more, a day for one of years, less where there would be fewer than 24 rounds.

    >>> _usual_round(20 * 86400), _usual_round(3 * 365 * 86400), _usual_round(7200)
    (3600.0, 86400.0, 300.0)
    """
    if span > 2 * 365 * 86400:
        return 86400.0
    return next((length for length in reversed(USUAL_ROUNDS) if span >= 24 * length), USUAL_ROUNDS[0])


def _shown(time: float, clock: str | None) -> str:
    if clock != "calendar":
        return f"{time:g} s"
    try:
        return datetime.fromtimestamp(time, UTC).isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):  # of a year that no calendar here has
        return f"{time:g} s since 1970"


def _largest_of_pairs(key_N: np.ndarray, work_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pair_A, inverse_N = np.unique(key_N, return_inverse=True)
    return pair_A, largest(work_N, inverse_N, len(pair_A))
