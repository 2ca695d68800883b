"""From the rows of a log to rounds: numbers are shifted to begin at 0, times are cut into rounds, pairs occur once.

Shape letters: N rows of the log, A rows of the record, M clients, T rounds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from turnout.fleet.faults import Faults
from turnout.fleet.fleet import Fleet
from turnout.fleet.reading import Reading
from turnout.fleet.rows import MOST_ROUNDS, LogRows, Rounds, largest, without_gaps
from turnout.fleet.timed import rounds_of_check_ins, rounds_of_intervals

FEW = 0.05  # of check-ins: up to here zeros are clients that came and finished nothing, not a list of the absent


def fleet_of(rows: LogRows, reading: Reading, faults: Faults) -> Fleet:
    """The record of these rows, or a UserError with every fault."""
    make = {"rounds": _numbered, "check-ins": rounds_of_check_ins, "intervals": rounds_of_intervals}[rows.form]
    _check_values(rows, faults)
    if rows.form != "rounds":
        faults.check()  # a time that is wrong would decide where rounds begin
    made = make(rows, reading, faults)
    faults.check()
    if reading.gaps == "skip":
        made = without_gaps(made)
    zeros = int((made.work_A == 0).sum()) if rows.effort is None else 0  # zeros that the log itself has
    few = FEW if rows.form == "check-ins" else 0.0
    missing = reading.missing or ("not-asked" if zeros > few * len(made.work_A) else "absent")
    order_M = _order(rows.names)
    rank_M = np.empty(len(order_M), dtype=np.int32)
    rank_M[order_M] = np.arange(len(order_M))
    client_A = rank_M[made.code_A]
    sorted_A = np.lexsort((client_A, made.round_A))
    fleet = Fleet(
        path=rows.path,
        names=tuple(rows.names[code] for code in order_M),
        rounds=made.rounds,
        round_N=made.round_A[sorted_A].astype(np.int32),
        client_N=client_A[sorted_A],
        work_N=made.work_A[sorted_A],
        missing=missing,
        start_T=made.start_T,
        clock=rows.clock,
        every=made.every,
        examples_M=None if rows.examples_N is None else largest(rows.examples_N, rows.code_N, len(order_M))[order_M],
        line_M=_first_lines(rows)[order_M],
    )
    return replace(fleet, assumed=(*rows.said, *made.said, *_about_absence(fleet, rows, reading)))


def _without_a_row(fleet: Fleet, zeros: int) -> str:
    """What a client without a row was taken for, and why."""
    if not zeros:
        return "the log never has a 0, so a client without a row was absent (--missing not-asked says otherwise)"
    counted = f"work is 0 in {zeros:,} of {len(fleet.work_N):,} rows"
    if fleet.missing == "absent":
        return f"{counted} of check-ins alone, so a client without one was absent (--missing not-asked says otherwise)"
    return f"{counted}, so a client without a row was not asked (--missing absent says otherwise)"


def _check_values(rows: LogRows, faults: Faults) -> None:
    if rows.round_N is not None and rows.form == "rounds":
        for n in np.flatnonzero(rows.round_N < 0):
            faults.add("negative", int(rows.line_N[n]), f"rounds are counted from 0, got {rows.round_N[n]:.0f}")
    if rows.form == "intervals" and rows.time_N is not None and rows.end_N is not None:
        for n in np.flatnonzero(rows.end_N < rows.time_N):
            faults.add("order", int(rows.line_N[n]), "the end is before the start")


def _order(names: tuple[str, ...]) -> np.ndarray:
    """Clients with numbers for names by number, others as they come first in the log."""
    if all(name.isdecimal() for name in names):
        return np.argsort([int(name) for name in names], kind="stable")
    return np.arange(len(names))


def _numbered(rows: LogRows, reading: Reading, faults: Faults) -> Rounds:
    """Rows that say their round."""
    assert rows.round_N is not None
    known_N = ~np.isnan(rows.round_N)
    if not known_N.any():
        faults.check()
    lowest = int(np.nanmin(rows.round_N))
    first = reading.first_round if reading.first_round is not None else 0 if rows.own_form else max(lowest, 0)
    said = [f"rounds are counted from {first}, the first in the log"] if first and reading.first_round is None else []
    for n in np.flatnonzero(rows.round_N < first) if first > max(0, lowest) else ():
        faults.add("early", int(rows.line_N[n]), f"round {rows.round_N[n]:.0f} is before the first, {first}")
    round_N = np.where(known_N, rows.round_N - first, -1).astype(np.int64)
    rounds = int(round_N.max()) + 1
    if rounds > MOST_ROUNDS:
        faults.add("far", int(rows.line_N[round_N.argmax()]), f"round {rounds - 1 + first} is far beyond {MOST_ROUNDS}")
    _check_twice(rows, round_N, first, faults)
    faults.check()
    start_T, every = _round_starts(rows, round_N, rounds)
    work_N = np.ones(len(round_N)) if rows.work_N is None else rows.work_N
    return Rounds(round_N, rows.code_N, work_N, rounds, start_T, every, said)


def _check_twice(rows: LogRows, round_N: np.ndarray, first: int, faults: Faults) -> None:
    order_N = np.lexsort((rows.line_N, rows.code_N, round_N))
    same_N = (np.diff(round_N[order_N]) == 0) & (np.diff(rows.code_N[order_N]) == 0) & (round_N[order_N][1:] >= 0)
    for at in np.flatnonzero(same_N):
        one, again = order_N[at], order_N[at + 1]
        who = f"round {round_N[again] + first} of client {rows.names[rows.code_N[again]]}"
        faults.add("twice", int(rows.line_N[again]), f"{who} is on {faults.at} {rows.line_N[one]} already")


def _round_starts(rows: LogRows, round_N: np.ndarray, rounds: int) -> tuple[np.ndarray | None, float | None]:
    """When rounds began, from the earliest time of each; rounds without rows lie between their neighbours."""
    if rows.time_N is None or rounds < 2:
        return None, None
    start_T = np.full(rounds, np.inf)
    np.minimum.at(start_T, round_N, rows.time_N)
    known_T = np.isfinite(start_T)
    start_T = np.interp(np.arange(rounds), np.flatnonzero(known_T), start_T[known_T])
    return start_T, float(np.median(np.diff(start_T)))


def _first_lines(rows: LogRows) -> np.ndarray:
    line_M = np.full(len(rows.names), np.iinfo(np.int32).max, dtype=np.int32)
    np.minimum.at(line_M, rows.code_N, rows.line_N)
    return line_M


def _about_absence(fleet: Fleet, rows: LogRows, reading: Reading) -> list[str]:
    """What was assumed about work and about clients without a row."""
    said = []
    if rows.work_N is None and rows.form != "intervals":
        said.append("the log says nothing about work: whoever came did all of it")
    if reading.missing is None:
        said.append(_without_a_row(fleet, 0 if rows.effort is not None else int((fleet.work_N == 0).sum())))
    if fleet.missing == "absent":
        empty = fleet.rounds - len(np.unique(fleet.round_N))
        if empty and rows.form != "rounds":
            said.append(
                f"nobody came in {empty:,} of {fleet.rounds:,} rounds: all were absent"
                + (" (--gaps skip leaves out whole days of them)" if reading.gaps == "outage" else "")
            )
        late, gone = int((fleet.joined_M > 0).sum()), int((fleet.left_M < fleet.rounds).sum())
        if late or gone:
            said.append(
                f"{late:,} clients that are first seen late had not joined before, and {gone:,} that are not seen "
                "to the end had left: so long a silence does not fit their visits (chance below 1 in 1,000)"
            )
    return said
