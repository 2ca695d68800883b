"""The turnout as a CSV file of `round,client,work`: what runs export and what `FleetLog` replays.

`work` is the fraction finished, in [0, 1]; 0 means asked and absent; no row means not asked. A client is written by its
number, or by its name if the data has names.

Shape letters: N rows of the file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.errors import Mistake

HEADER = ["round", "client", "work"]


@dataclass(frozen=True)
class TurnoutLog:
    """The rows of a log, in the order of the file; row n is about client `labels[code_N[n]]`, as written there."""

    path: str
    round_N: np.ndarray
    code_N: np.ndarray
    work_N: np.ndarray
    labels: tuple[str, ...]

    @property
    def rounds(self) -> int:
        """Rounds covered: one more than the last round with a row."""
        return int(self.round_N.max()) + 1

    def mistake(self, row: int, what: str) -> Mistake:
        return _at_line(self.path, row, what)


def _at_line(path: str | Path, row: int, what: str) -> Mistake:
    return Mistake(f"{path}, line {row + 2}: {what}")


def write_turnout(path: str | Path, rows: Iterable[tuple[int, int | str, float]]) -> None:
    """Write rows (round, client, work) as a log; clients by number or by name."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows((int(t), client, repr(float(work))) for t, client, work in rows)


def read_turnout(path: str | Path) -> TurnoutLog:
    """Read and check a log; a mistake names its line."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rounds, clients, works = _columns(path, csv.reader(file))
    except OSError as error:
        raise Mistake(f"cannot read the log {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise Mistake(f"{path} is not a CSV text of `round,client,work`: {error}") from error
    label_of = {label: code for code, label in enumerate(dict.fromkeys(clients))}
    code_N = np.fromiter((label_of[c] for c in clients), dtype=np.int64, count=len(clients))
    round_N, work_N = _numbers(path, "round", rounds, int), _numbers(path, "work", works, float)
    log = TurnoutLog(str(path), round_N, code_N, work_N, tuple(label_of))
    _check_rows(log)
    return log


def _columns(path: str | Path, rows: Iterator[list[str]]) -> tuple[list[str], list[str], list[str]]:
    """The texts of the three columns. Rows are not kept, because a million small lists are slow."""
    header = next(rows, [])
    if [name.strip() for name in header] != HEADER:
        raise Mistake(f"{path}, line 1: the header must be `round,client,work`, got `{','.join(header)}`")
    columns: tuple[list[str], list[str], list[str]] = ([], [], [])
    for i, row in enumerate(rows):
        if not row and not any(rows):
            break  # empty lines at the end
        if len(row) != 3:
            raise _at_line(path, i, f"a row has 3 values (round, client, work), this one has {len(row)}")
        columns[0].append(row[0])
        columns[1].append(row[1].strip())
        columns[2].append(row[2])
    if not columns[0]:
        raise Mistake(f"{path} has no rows: give one row for every client asked in a round")
    return columns


def _numbers(path: str | Path, column: str, texts: Sequence[str], kind: type) -> np.ndarray:
    try:
        return np.array(list(map(kind, texts)))
    except (ValueError, OverflowError):
        what = "a whole number" if kind is int else "a number"
        for i, text in enumerate(texts):
            try:
                kind(text)
            except ValueError:
                raise _at_line(path, i, f"{column} must be {what}, got {text!r}") from None
        raise


def _check_rows(log: TurnoutLog) -> None:
    bad_N = ~((log.work_N >= 0) & (log.work_N <= 1))  # written so that NaN is bad too
    if bad_N.any():
        row = int(bad_N.argmax())
        raise log.mistake(row, f"work is the fraction finished, 0 to 1, got {log.work_N[row]:g}")
    if (log.round_N < 0).any():
        row = int((log.round_N < 0).argmax())
        raise log.mistake(row, f"rounds are counted from 0, got {log.round_N[row]}")
    order_N = np.lexsort((log.code_N, log.round_N))
    twice_N = (np.diff(log.round_N[order_N]) == 0) & (np.diff(log.code_N[order_N]) == 0)
    if twice_N.any():
        first = int(twice_N.argmax())
        row, again = int(order_N[first]), int(order_N[first + 1])
        name = log.labels[log.code_N[row]]
        raise log.mistake(again, f"round {log.round_N[row]} of client {name} is on line {row + 2} already")
