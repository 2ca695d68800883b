"""From the rows of a log to rounds: round numbers begin at 0, times are cut into rounds, pairs occur once.

Shape letters: N rows of the file, A rows of the log made of it, M clients, T rounds, D days.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from turnout.errors import UserError
from turnout.fleet.participation_log import DAY, ParticipationLog
from turnout.fleet.reading import Reading, seconds
from turnout.running.charts.units import duration
from turnout.world.log import MOST_ROUNDS, Faults, in_order

Form = Literal["rounds", "check-ins", "intervals"]
FEW = 0.05  # up to this share of check-ins, zeros are clients that came and finished nothing, not a list of the absent
MOST_ROWS = 400_000_000  # that stays may become
CHUNK = 10_000_000  # rows at a time
SHOWN = 3  # faults of those that are skipped
USUAL_ROUNDS = (3600.0, 900.0, 300.0, 60.0)  # seconds, in the order tried


@dataclass(frozen=True)
class LogRows:
    """The rows of a file as numbers; a cell that is a fault is NaN.

    path        the file
    form        what a row is: a client asked in a round, a client that came at `time_N`, or a stay from `time_N` to
                `end_N` (infinite: to the end of the log)
    names       the clients
    code_N      the client of each row, as a place in `names`
    line_N      its line; None: unknown, and then no cell is a fault
    round_N, time_N, end_N, work_N   its cells; None if the file has no such column
    examples_M, label_M   how many examples each client has, and its label, if the file has that
    is_calendar whether times count from 1970
    zone        what is assumed about the time zone
    own_form    whether the file is a turnout.csv, whose rounds are counted from 0
    assumed     guesses so far
    """

    path: str
    form: Form
    names: tuple[str, ...]
    code_N: np.ndarray
    line_N: np.ndarray | None
    round_N: np.ndarray | None = None
    time_N: np.ndarray | None = None
    end_N: np.ndarray | None = None
    work_N: np.ndarray | None = None
    examples_M: np.ndarray | None = None
    label_M: tuple[str, ...] | None = None
    is_calendar: bool = False
    zone: str | None = None
    own_form: bool = False
    assumed: list[str] = field(default_factory=list)

    def line(self, row: int | np.integer) -> int:
        """The line of a row, for a fault."""
        if self.line_N is None:
            raise NeedsLines
        return int(self.line_N[row])


class NeedsLines(Exception):
    """A fault in rows whose lines are unknown: the log must be read with its lines."""


@dataclass(frozen=True)
class Rounds:
    """Rows as (round, client, work).

    round_A, code_A, work_A  the rows
    rounds                   how many rounds there are
    start_T                  when each began, if known
    every                    seconds from round to round, if known
    assumed                  guesses on the way
    """

    round_A: np.ndarray
    code_A: np.ndarray
    work_A: np.ndarray
    rounds: int
    start_T: np.ndarray | None
    every: float | None
    assumed: list[str]


def log_of_rows(rows: LogRows, reading: Reading, faults: Faults) -> ParticipationLog:
    """The log of these rows, or a UserError with every fault; with `skip_faulty`, without the faulty rows."""
    skipped: list[str] = []
    checks = {"rounds": [_check_numbers, _check_repeats], "check-ins": [], "intervals": [_check_order]}[rows.form]
    if reading.skip_faulty:
        rows = _without_faults(rows, faults, skipped)
    elif rows.form == "check-ins":
        faults.check()
    for check in checks:
        check(rows, reading, faults)
        if reading.skip_faulty:
            rows = _without_faults(rows, faults, skipped)
        elif check is not _check_numbers:  # its faults are listed together with repeats
            faults.check()
    make = {"rounds": _numbered_rounds, "check-ins": _check_in_rounds, "intervals": _interval_rounds}[rows.form]
    made = make(rows, reading, faults)
    faults.check()
    if reading.gaps == "skip":
        made = _without_gaps(made)
    zeros = int((made.work_A == 0).sum())
    few = FEW if rows.form == "check-ins" else 0.0
    missing = reading.missing or ("not-asked" if zeros > few * len(made.work_A) else "absent")
    line_M = None
    if rows.line_N is not None:
        line_M = np.full(len(rows.names), np.iinfo(np.int32).max, dtype=np.int32)
        np.minimum.at(line_M, rows.code_N, rows.line_N)
    log = ParticipationLog.of_rows(
        rows.path,
        rows.names,
        made.rounds,
        (made.round_A, made.code_A, made.work_A),
        line_M,
        missing=missing,
        start_T=made.start_T,
        is_calendar=rows.is_calendar,
        every=made.every,
    )
    place_of = {name: place for place, name in enumerate(rows.names)}
    order_M = [place_of[name] for name in log.names]
    if rows.examples_M is not None:
        log = replace(log, examples_M=rows.examples_M[order_M])
    if rows.label_M is not None:
        log = replace(log, label_M=tuple(rows.label_M[place] for place in order_M))
    zone = [rows.zone] if rows.zone else []
    absences = _absence_assumptions(log, rows, reading, zeros)
    return replace(log, assumed=(*skipped, *rows.assumed, *zone, *made.assumed, *absences))


def _without_faults(rows: LogRows, faults: Faults, skipped: list[str]) -> LogRows:
    """The rows without those that have faults; says in `skipped` how many they are."""
    listed = sorted({fault for kind in faults.found.values() for fault in kind})
    if not listed:
        return rows
    faults.found.clear()
    lines = sorted({line for line, _ in listed})
    first = "; ".join(f"{faults.at} {line}: {words}" for line, words in listed[:SHOWN])
    skipped.append(f"{len(lines):,} faulty {faults.at}s are left out (--skip-faulty). The first faults: {first}")
    kept_N = ~np.isin(rows.line_N if rows.line_N is not None else (), lines)
    if not kept_N.any():
        raise UserError(f"{rows.path}: no {faults.at} is without a fault. The first: {first}")
    used_M, code_N = np.unique(rows.code_N[kept_N], return_inverse=True)

    def of(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[kept_N]

    return replace(
        rows,
        names=tuple(rows.names[place] for place in used_M),
        code_N=code_N.astype(np.int32),
        line_N=of(rows.line_N),
        round_N=of(rows.round_N),
        time_N=of(rows.time_N),
        end_N=of(rows.end_N),
        work_N=of(rows.work_N),
        examples_M=None if rows.examples_M is None else rows.examples_M[used_M],
        label_M=None if rows.label_M is None else tuple(rows.label_M[place] for place in used_M),
    )


def _check_order(rows: LogRows, reading: Reading, faults: Faults) -> None:
    assert rows.time_N is not None
    assert rows.end_N is not None
    for n in np.flatnonzero(rows.end_N < rows.time_N):
        faults.add("order", rows.line(n), "the end is before the start")


def _first_round(rows: LogRows, reading: Reading) -> int:
    """The number of the log's first round."""
    assert rows.round_N is not None
    lowest = 0 if np.isnan(rows.round_N).all() else int(np.nanmin(rows.round_N))
    return reading.first_round if reading.first_round is not None else 0 if rows.own_form else max(lowest, 0)


def _check_numbers(rows: LogRows, reading: Reading, faults: Faults) -> None:
    assert rows.round_N is not None
    first = _first_round(rows, reading)
    for n in np.flatnonzero(rows.round_N < first):
        if rows.round_N[n] < 0:
            faults.add("negative", rows.line(n), f"rounds are counted from 0, got {rows.round_N[n]:.0f}")
        else:
            faults.add("early", rows.line(n), f"round {rows.round_N[n]:.0f} is before the first, {first}")
    for n in np.flatnonzero(rows.round_N >= first + MOST_ROUNDS):
        faults.add("far", rows.line(n), f"round {rows.round_N[n]:.0f} is far beyond {MOST_ROUNDS}")


def _check_repeats(rows: LogRows, reading: Reading, faults: Faults) -> None:
    assert rows.round_N is not None
    if in_order(rows.round_N, rows.code_N):
        return
    if rows.line_N is None:
        pair_N = np.sort(rows.round_N.astype(np.int64) * len(rows.names) + rows.code_N)
        if (pair_N[1:] == pair_N[:-1]).any():
            raise NeedsLines
        return
    first = _first_round(rows, reading)
    round_N = np.where(np.isnan(rows.round_N), -1, rows.round_N - first).astype(np.int64)
    faults.add_repeats(round_N, rows.code_N, rows.line_N, rows.names, first)


def _numbered_rounds(rows: LogRows, reading: Reading, faults: Faults) -> Rounds:
    """Rounds of rows that have their number."""
    assert rows.round_N is not None
    first = _first_round(rows, reading)
    round_N = rows.round_N.astype(np.int32, copy=False)
    round_N = round_N - np.int32(first) if first else round_N
    rounds = int(round_N.max()) + 1
    start_T = every = None
    if rows.time_N is not None and rounds > 1:  # the earliest time of each; interpolated for rounds without rows
        earliest_T = np.full(rounds, np.inf)
        np.minimum.at(earliest_T, round_N, rows.time_N)
        known_T = np.isfinite(earliest_T)
        start_T = np.interp(np.arange(rounds), np.flatnonzero(known_T), earliest_T[known_T])
        every = float(np.median(np.diff(start_T)))
    guessed = first and reading.first_round is None
    assumed = [f"rounds are counted from {first}, the first in the log"] if guessed else []
    work_N = np.ones(len(round_N)) if rows.work_N is None else rows.work_N
    return Rounds(round_N, rows.code_N, work_N, rounds, start_T, every, assumed)


def _check_in_rounds(rows: LogRows, reading: Reading, faults: Faults) -> Rounds:
    """Rounds of rows that say when a client came; several of one client within a round are one."""
    assert rows.time_N is not None
    grid = _Grid.over(rows, reading, float(rows.time_N.max()), faults)
    round_N = np.empty(len(rows.time_N), np.int32)
    for begin in range(0, len(round_N), CHUNK):  # in parts, which need little memory
        part = slice(begin, begin + CHUNK)
        round_N[part] = (rows.time_N[part] - grid.begin) // grid.every
    start_T, work_N = grid.begin + grid.every * np.arange(grid.rounds), rows.work_N
    if in_order(round_N, rows.code_N):
        work_N = np.ones(len(round_N)) if work_N is None else work_N
        return Rounds(round_N, rows.code_N, work_N, grid.rounds, start_T, grid.every, grid.assumed)
    pair_N = round_N.astype(np.int64) * len(rows.names) + rows.code_N
    order_N = np.argsort(pair_N, kind="stable")
    pair_N = pair_N[order_N]
    first_A = np.flatnonzero(np.concatenate([[True], pair_N[1:] != pair_N[:-1]]))
    work_A = np.ones(len(first_A)) if work_N is None else np.maximum.reduceat(work_N[order_N], first_A)
    again = len(round_N) - len(first_A)
    assumed = [f"{again:,} check-ins of clients that had come in the same round already count once"] if again else []
    kept_A = order_N[first_A]
    return Rounds(
        round_N[kept_A], rows.code_N[kept_A], work_A, grid.rounds, start_T, grid.every, [*grid.assumed, *assumed]
    )


def _interval_rounds(rows: LogRows, reading: Reading, faults: Faults) -> Rounds:
    """Rounds of rows that are stays: the work is the share of a round that a client was there."""
    assert rows.time_N is not None
    assert rows.end_N is not None
    closed_N = np.isfinite(rows.end_N)
    last = float(max(rows.time_N.max(), rows.end_N[closed_N].max(initial=-np.inf)))
    end_N = np.where(closed_N, rows.end_N, last)
    grid = _Grid.over(rows, reading, max(last - 1e-6, float(rows.time_N.max())), faults)
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
    clients = len(rows.names)
    pair_A, inverse_A = np.unique(round_A * clients + rows.code_N[of_A], return_inverse=True)
    if rows.work_N is not None:
        work_A = largest(rows.work_N[of_A], inverse_A, len(pair_A))
        assumed = ["the work of a stay is the work of each of its rounds"]
    else:
        seconds_A = np.clip(np.bincount(inverse_A, weights=there_A), 0, grid.every)
        pair_A, seconds_A = pair_A[seconds_A > 0], seconds_A[seconds_A > 0]
        work_A, assumed = seconds_A / grid.every, ["work is the share of a round that a client was there"]
    if not closed_N.all():
        assumed.append(f"{int((~closed_N).sum()):,} stays without an end last to the end of the log")
    return grid.rounds_of(pair_A, work_A, clients, assumed)


@dataclass(frozen=True)
class _Grid:
    """Rounds of equal length from a beginning on."""

    begin: float
    every: float
    rounds: int
    assumed: list[str]

    @classmethod
    def over(cls, rows: LogRows, reading: Reading, last: float, faults: Faults) -> _Grid:
        """Rounds over the times of a log; on a calendar an hour begins at a full hour, a day at midnight."""
        assert rows.time_N is not None
        first = float(rows.time_N.min())
        every = seconds(reading.every) if reading.every is not None else _usual_round(last - first)
        begin = first // every * every
        rounds = int((last - begin) // every) + 1
        if rounds > MOST_ROUNDS:
            many = f"{rounds:,}" if rounds < 10**15 else f"{rounds:.0e}"
            for n in (rows.time_N.argmin(), rows.time_N.argmax()):
                shown = f"{rows.time_N[n]:g} s"
                if rows.is_calendar:
                    with suppress(OverflowError, ValueError, OSError):  # of a year that no calendar here has
                        shown = f"{shown} since 1970"
                        shown = datetime.fromtimestamp(float(rows.time_N[n]), UTC).isoformat(" ", "seconds")
                message = f"with rounds of {duration(every)} the log has {many} of them: is this time right? {shown}"
                faults.add("span", rows.line(n), message)
            faults.check()
        assumed = [] if reading.every is not None else [f"a round is {duration(every)} (--every sets another length)"]
        if not rows.is_calendar:
            assumed.append("times are seconds since an unknown hour of an unknown day")
        return cls(begin, every, rounds, assumed)

    def rounds_of(self, pair_A: np.ndarray, work_A: np.ndarray, clients: int, assumed: list[str]) -> Rounds:
        round_A, code_A = np.divmod(pair_A, clients)
        start_T = self.begin + self.every * np.arange(self.rounds)
        return Rounds(round_A, code_A, work_A, self.rounds, start_T, self.every, [*self.assumed, *assumed])


def _usual_round(span: float) -> float:
    """An hour for a log of a day or more, a day for one of years, less if there would be fewer than 24 rounds.

    >>> _usual_round(20 * 86400), _usual_round(3 * 365 * 86400), _usual_round(7200)
    (3600.0, 86400.0, 300.0)
    """
    if span > 2 * 365 * DAY:
        return DAY
    return next((length for length in USUAL_ROUNDS if span >= 24 * length), USUAL_ROUNDS[-1])


def largest(value_N: np.ndarray, of_N: np.ndarray, count: int) -> np.ndarray:
    """The largest value of each of `count` things, or 0; `of_N`: the thing of each value."""
    most = np.zeros(count)
    np.maximum.at(most, of_N, value_N)
    return most


def _without_gaps(made: Rounds) -> Rounds:
    """The rounds without the days in which no client came; whole days, so that an hour stays an hour.

    If a day is not a whole number of rounds, or the log has no times, single rounds are removed.
    """
    day_T = np.arange(made.rounds)
    if made.start_T is not None and made.every is not None and DAY % made.every == 0:
        day_T = (made.start_T // DAY).astype(np.int64)
        day_T -= day_T[0]
    rows_D = np.bincount(day_T[made.round_A], minlength=int(day_T[-1]) + 1)
    kept_T = rows_D[day_T] > 0
    gone = made.rounds - int(kept_T.sum())
    if not gone:
        return made
    assumed = f"no client came in {gone:,} of {made.rounds:,} rounds, which are removed (--gaps skip)"
    return replace(
        made,
        round_A=(kept_T.cumsum() - 1)[made.round_A],
        rounds=made.rounds - gone,
        start_T=None if made.start_T is None else made.start_T[kept_T],
        assumed=[*made.assumed, assumed],
    )


def _absence_assumptions(log: ParticipationLog, rows: LogRows, reading: Reading, zeros: int) -> list[str]:
    """Guesses about work and about clients without a row."""
    assumed = []
    if rows.work_N is None and rows.form != "intervals":
        assumed.append("the log has no work: every client that came did all of it")
    if reading.missing is None:
        counted = f"work is 0 in {zeros:,} of {len(log.work_N):,} rows" if zeros else "the log never has a 0"
        if log.missing == "not-asked":
            assumed.append(f"{counted}, so a client without a row was not asked (--missing absent changes that)")
        else:
            alone = " of check-ins" if zeros else ""
            assumed.append(f"{counted}{alone}, so a client without a row was absent (--missing not-asked changes that)")
    if log.missing == "absent":
        empty = int((np.diff(log.first_row_T) == 0).sum())
        if empty and rows.form != "rounds":
            hint = " (--gaps skip removes whole days of them)" if reading.gaps == "outage" else ""
            assumed.append(f"no client came in {empty:,} of {log.rounds:,} rounds: all were absent{hint}")
        late, gone = int((log.joined_M > 0).sum()), int((log.left_M < log.rounds).sum())
        if late or gone:
            assumed.append(
                f"{late:,} clients that are first seen late had not joined before, and {gone:,} that are not seen "
                "to the end had left: so long a silence does not fit their visits (chance below 1 in 1,000)"
            )
    return assumed
