"""A log of participation: which client was asked in which round, and which share of the work it finished.

Every run writes one as `turnout.csv`. It keeps rows, not a table of rounds x clients.

Shape letters: N rows, M clients of the log, T rounds.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from turnout.errors import UserError
from turnout.machine.table_files import open_table

HEADER = ("round", "client", "work")
TURNOUT_FILE = "turnout.csv"  # in a run folder
MOST_ROUNDS = 1_000_000
IN_FULL, LISTED = 5, 20  # faults of one kind that are quoted, and further ones of which the line is given


@dataclass(frozen=True)
class TurnoutTable:
    """The rows of a log of rounds 0 .. rounds - 1. Row n: client `client_N[n]` was asked in round `round_N[n]` and
    finished the share `work_N[n]` of the work (0: absent). Rows are sorted by round, then client, each pair once.

    path      the file
    names     the clients' names in the log; clients are numbered in this order
    rounds    how many rounds the log has
    round_N   the round of each row
    client_N  the client of each row, as a place in `names`
    work_N    the work of each row, 0 to 1
    line_M    the line of the log in which each client first occurs
    """

    path: str
    names: tuple[str, ...]
    rounds: int
    round_N: np.ndarray
    client_N: np.ndarray
    work_N: np.ndarray
    line_M: np.ndarray | None = None

    @classmethod
    def of_rows(
        cls, path: str, names: tuple[str, ...], rounds: int, rows: tuple[np.ndarray, np.ndarray, np.ndarray],
        line_M: np.ndarray | None, **settings: Any,
    ) -> Self:  # fmt: skip
        """A log of (round, client, work) in any order. Clients are sorted by name where all names are numbers."""
        order_M = np.arange(len(names))
        if all(name.isdecimal() and len(name) < 19 for name in names):
            order_M = np.argsort([int(name) for name in names], kind="stable")
        round_N, client_N, work_N = rows[0].astype(np.int32, copy=False), rows[1].astype(np.int32, copy=False), rows[2]
        if (order_M[1:] < order_M[:-1]).any():
            client_N = np.argsort(order_M).astype(np.int32)[client_N]
        if not in_order(round_N, client_N):
            sorted_N = np.argsort(round_N.astype(np.int64) * len(names) + client_N, kind="stable")
            round_N, client_N, work_N = round_N[sorted_N], client_N[sorted_N], work_N[sorted_N]
        first_M = None if line_M is None else line_M[order_M]
        names = tuple(names[place] for place in order_M)
        return cls(path, names, rounds, round_N, client_N, work_N, first_M, **settings)

    @property
    def clients(self) -> int:
        return len(self.names)

    def row(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """The clients with a row in round t, sorted, and the work of each."""
        rows = slice(self.first_row_T[t], self.first_row_T[t + 1])
        return self.client_N[rows], self.work_N[rows]

    @cached_property
    def first_row_T(self) -> np.ndarray:
        """The row with which each round begins, and the number of rows."""
        return np.searchsorted(self.round_N, np.arange(self.rounds + 1))

    def rows(self) -> list[tuple[int, str, float]]:
        """(round, client, work) as a turnout CSV has them."""
        triples = zip(self.round_N.tolist(), self.client_N.tolist(), self.work_N.tolist(), strict=True)
        return [(t, self.names[client], work) for t, client, work in triples]


def in_order(round_N: np.ndarray, client_N: np.ndarray) -> bool:
    """Whether rows are sorted by round, then client, each pair once.

    >>> in_order(np.array([0, 0, 1]), np.array([1, 2, 0])), in_order(np.array([0, 0]), np.array([1, 1]))
    (True, False)
    """
    for begin in range(0, len(round_N) - 1, 10_000_000):  # in parts, which need little memory
        part = slice(begin, begin + 10_000_001)
        step_n, next_n = np.diff(round_N[part]), np.diff(client_N[part])
        if not ((step_n > 0) | ((step_n == 0) & (next_n > 0))).all():
            return False
    return True


@dataclass
class Faults:
    """The faults of one file, collected while it is read and reported together.

    path   the file
    at     what its rows are called: "line" of a text, "row" of a Parquet file
    found  (line, message) of each fault, by kind of fault
    """

    path: str
    at: str = "line"
    found: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, kind: str, line: int, message: str) -> None:
        """Add one fault; faults of one kind are counted together."""
        self.found.setdefault(kind, []).append((line, message))

    def add_repeats(
        self, round_N: np.ndarray, code_N: np.ndarray, line_N: np.ndarray, names: tuple[str, ...], first: int = 0
    ) -> None:
        """Add a fault for every row whose round (below 0: unknown) and client occurred before. `code_N`: the clients as
        places in `names`; `first`: the number that round 0 has in the file."""
        order_N = np.lexsort((line_N, code_N, round_N))
        same_N = (np.diff(round_N[order_N]) == 0) & (np.diff(code_N[order_N]) == 0) & (round_N[order_N][1:] >= 0)
        for at in np.flatnonzero(same_N):
            one, again = order_N[at], order_N[at + 1]
            row = f"round {round_N[again] + first} of client {names[code_N[again]]}"
            self.add("twice", int(line_N[again]), f"{row} is on {self.at} {line_N[one]} already")

    def check(self) -> None:
        """Raise a UserError that lists all faults, if there are any."""
        count = sum(map(len, self.found.values()))
        if count == 1:
            ((line, message),) = next(iter(self.found.values()))
            raise UserError(f"{self.path}, {self.at} {line}: {message}")
        if not count:
            return
        entries: list[tuple[int, bool, str]] = []  # line, whether it counts further faults, text
        for faults in self.found.values():
            entries += [(line, False, f"  {self.at} {line}: {message}") for line, message in faults[:IN_FULL]]
            if more := faults[IN_FULL : IN_FULL + LISTED]:
                rest = len(faults) - IN_FULL - len(more)
                lines = ", ".join(str(line) for line, _ in more) + (f" and {rest:,} more" if rest else "")
                text = f"  and {len(faults) - IN_FULL:,} more faults like this: {self.at}s {lines}"
                entries.append((entries[-1][0], True, text))
        lines = "\n".join(text for *_, text in sorted(entries))
        raise UserError(f"{self.path} has {count:,} faults; correct them:\n{lines}")


def find_turnout(path: Path) -> Path:
    """The file itself; of a run folder, its turnout.csv."""
    if not path.is_dir():
        return path
    if (path / TURNOUT_FILE).is_file():
        return path / TURNOUT_FILE
    inside = sorted(found.parent for found in path.glob(f"*/**/{TURNOUT_FILE}"))
    hint = f"; it holds runs, name one of them, such as {inside[0]}" if inside else ""
    raise UserError(f"{path} is a folder without {TURNOUT_FILE}{hint or ': give a log, or the folder of a run'}")


def read_turnout(path: str | Path) -> TurnoutTable:
    """The log in a CSV file of round,client,work, or in a run's folder. No row means that a client was not asked."""
    file = find_turnout(Path(path))
    table = open_table(file)
    if table.header != list(HEADER):
        raise UserError(
            f"{file} has the columns {', '.join(table.header)}, not {','.join(HEADER)}: use participation 'fleet-log' "
            "(and selection 'as-fleet-log') for other logs, or convert it with turnout fleet LOG --csv turnout.csv"
        )
    faults = Faults(str(file), table.counted_in)
    code_of: dict[str, int] = {}
    blocks = []
    for block in table.blocks(bad_row=lambda line, message: faults.add("cells", line, message)):
        cells = [block.cells[name] for name in HEADER]
        try:
            round_N, work_N = np.array(list(map(int, cells[0]))), np.array(list(map(float, cells[2])))
        except ValueError:
            round_N = np.array([int(t) if t.isdecimal() else -1 for t in cells[0]])
            work_N = np.array([_number(work) for work in cells[2]])
        code_N = np.array([code_of.setdefault(name, len(code_of)) for name in cells[1]])
        good_NK = np.stack([(round_N >= 0) & (round_N < MOST_ROUNDS), code_N != code_of.get("", -1),
                            (work_N >= 0) & (work_N <= 1)], axis=1)  # fmt: skip
        for n, k in np.argwhere(~good_NK):
            wanted = (f"a whole number from 0 to {MOST_ROUNDS - 1:,}", "a name", "the share finished, 0 to 1")[k]
            faults.add(HEADER[k], block.line_B[n], f"{HEADER[k]} must be {wanted}, got {cells[k][n]!r}")
        blocks.append(np.stack([np.where(good_NK[:, 0], round_N, -1), code_N, work_N, block.line_B], axis=1))
    if not blocks:
        faults.check()
        raise UserError(f"{file} has no rows: a row says that a client was asked in a round")
    row_N4 = np.concatenate(blocks)
    (round_N, code_N, line_N), work_N = row_N4[:, [0, 1, 3]].astype(np.int64).T, row_N4[:, 2]
    names = tuple(code_of)
    faults.add_repeats(round_N, code_N, line_N, names)
    faults.check()
    line_M = line_N[np.unique(code_N, return_index=True)[1]]
    columns = round_N, code_N, work_N
    return TurnoutTable.of_rows(str(file), names, int(round_N.max()) + 1, columns, line_M)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def write_turnout(path: str | Path, rows: Iterable[tuple[int, int | str, float]]) -> None:
    """Write rows (round, client, work) as a log; a client is its number, or its name if the data has names."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows((int(t), client, repr(float(work))) for t, client, work in rows)
