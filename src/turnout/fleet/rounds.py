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
from turnout.world.log import MOST_ROUNDS, Faults

Form = Literal["rounds", "check-ins", "intervals"]
FEW = 0.05  # up to this share of check-ins, zeros are clients that came and finished nothing, not a list of the absent
MOST_ROWS = 400_000_000  # that stays may become
USUAL_ROUNDS = (3600.0, 900.0, 300.0, 60.0)  # seconds, in the order tried


@dataclass(frozen=True)
class LogRows:
    """The rows of a file as numbers; a cell that is a fault is NaN.

    path        the file
    form        what a row is: a client asked in a round, a client that came at `time_N`, or a stay from `time_N` to
                `end_N` (infinite: to the end of the log)
    names       the clients
    code_N      the client of each row, as a place in `names`
    line_N      its line
    round_N, time_N, end_N, work_N, examples_N   its cells; None if the file has no such column
    is_calendar whether times count from 1970
    own_form    whether the file is a turnout.csv, whose rounds are counted from 0
    assumed     guesses so far
    """

    path: str
    form: Form
    names: tuple[str, ...]
    code_N: np.ndarray
    line_N: np.ndarray
    round_N: np.ndarray | None = None
    time_N: np.ndarray | None = None
    end_N: np.ndarray | None = None
    work_N: np.ndarray | None = None
    examples_N: np.ndarray | None = None
    is_calendar: bool = False
    own_form: bool = False
    assumed: list[str] = field(default_factory=list)


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
    """The log of these rows, or a UserError with every fault."""
    if rows.form == "rounds":
        made = _numbered_rounds(rows, reading, faults)
    else:
        if rows.form == "intervals" and rows.time_N is not None and rows.end_N is not None:
            for n in np.flatnonzero(rows.end_N < rows.time_N):
                faults.add("order", int(rows.line_N[n]), "the end is before the start")
        faults.check()  # a wrong time would decide where rounds begin
        made = (_check_in_rounds if rows.form == "check-ins" else _interval_rounds)(rows, reading, faults)
    faults.check()
    if reading.gaps == "skip":
        made = _without_gaps(made)
    zeros = int((made.work_A == 0).sum())
    few = FEW if rows.form == "check-ins" else 0.0
    missing = reading.missing or ("not-asked" if zeros > few * len(made.work_A) else "absent")
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
    if rows.examples_N is not None:
        examples = dict(zip(rows.names, _largest(rows.examples_N, rows.code_N, len(rows.names)), strict=True))
        log = replace(log, examples_M=np.array([examples[name] for name in log.names]))
    absences = _absence_assumptions(log, rows, reading, zeros)
    return replace(log, assumed=(*rows.assumed, *made.assumed, *absences))


def _numbered_rounds(rows: LogRows, reading: Reading, faults: Faults) -> Rounds:
    """Rounds of rows that have their number."""
    assert rows.round_N is not None
    for n in np.flatnonzero(rows.round_N < 0):
        faults.add("negative", int(rows.line_N[n]), f"rounds are counted from 0, got {rows.round_N[n]:.0f}")
    known_N = ~np.isnan(rows.round_N)
    if not known_N.any():
        faults.check()
    lowest = int(np.nanmin(rows.round_N))
    first = reading.first_round if reading.first_round is not None else 0 if rows.own_form else max(lowest, 0)
    for n in np.flatnonzero(rows.round_N < first) if first > max(0, lowest) else ():
        faults.add("early", int(rows.line_N[n]), f"round {rows.round_N[n]:.0f} is before the first, {first}")
    round_N = np.where(known_N, rows.round_N - first, -1).astype(np.int64)
    rounds = int(round_N.max()) + 1
    if rounds > MOST_ROUNDS:
        faults.add("far", int(rows.line_N[round_N.argmax()]), f"round {rounds - 1 + first} is far beyond {MOST_ROUNDS}")
    faults.add_repeats(round_N, rows.code_N, rows.line_N, rows.names, first)
    faults.check()
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
    round_N = ((rows.time_N - grid.begin) // grid.every).astype(np.int64)
    pair_A, inverse_N = np.unique(round_N * len(rows.names) + rows.code_N, return_inverse=True)
    work_N = np.ones(len(round_N)) if rows.work_N is None else rows.work_N
    again = len(round_N) - len(pair_A)
    assumed = [f"{again:,} check-ins of clients that had come in the same round already count once"] if again else []
    return grid.rounds_of(pair_A, _largest(work_N, inverse_N, len(pair_A)), len(rows.names), assumed)


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
        work_A = _largest(rows.work_N[of_A], inverse_A, len(pair_A))
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
                faults.add("span", int(rows.line_N[n]), message)
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


def _largest(value_N: np.ndarray, of_N: np.ndarray, count: int) -> np.ndarray:
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
        empty = log.rounds - len(np.unique(log.round_N))
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
