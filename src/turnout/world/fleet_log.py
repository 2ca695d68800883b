"""Participation from a fleet's log: a CSV of `round,client,work`.

`work` is the fraction finished, in [0, 1]; 0 means asked and absent; no row means not asked. Every run exports what it
observed in this form (`write_log`), so that a deployment can be replayed in-process. A measured log or that of a real
fleet can be resampled for any number of clients.

Shape letters: C clients of the cohort, N rows of the log, M clients that occur in the log.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from turnout.errors import Mistake, nearest
from turnout.rng import uniform

HEADER = ["round", "client", "work"]


@dataclass(frozen=True)
class Log:
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


def write_log(path: str | Path, rows: Iterable[tuple[int, int | str, float]]) -> None:
    """Write rows (round, client, work) as a log; clients by number or by name."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows((int(t), client, repr(float(work))) for t, client, work in rows)


def read_log(path: str | Path) -> Log:
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
    log = Log(str(path), round_N, code_N, work_N, tuple(label_of))
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


def _check_rows(log: Log) -> None:
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


@dataclass(frozen=True)
class FleetLog:
    """Participation from a log of `round,client,work`.

    mode="replay"    round t of the run is round t of the log: the logged fraction for a client with a row,
                     absent without one (`asked(t)` says who has; selection AsLogged asks exactly those)
    mode="resample"  every simulated client has one of the logged clients for good, at random, and draws one
                     of its rows each round (by="client"); or draws from all rows of the log (by="fleet")

    For a replay, clients in the log are the client names of the data where it has names, else their
    numbers; give the names by `bound`. A resampled log may name its clients as it likes.
    """

    path: str
    mode: str = "replay"
    by: str = "client"
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("mode", self.mode, ["replay", "resample"]),
            ("by", self.by, ["client", "fleet"]),
        ):
            if value not in known:
                raise Mistake(f"participation FleetLog: no {what} {value!r}; {nearest(value, known)}")
        if self.by == "fleet" and self.mode == "replay":
            raise Mistake("participation FleetLog: by='fleet' is a way to resample; set mode='resample'")

    @cached_property
    def log(self) -> Log:
        """The rows, read once."""
        return read_log(self.path)

    def bound(self, names: tuple[str, ...] | None, clients: int) -> FleetLog:
        """This log for data with these client names (None: numbered) and this many clients, checked."""
        log = replace(self, names=names)
        log.__dict__["log"] = self.log  # so that it is not read again
        if self.mode == "replay":
            log._check_clients(clients)
        return log

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        if self.mode == "resample":
            return self._resampled(client_C, t, seed)
        asked_A, work_A = self._round(t)
        if len(asked_A) == 0:
            return torch.zeros(len(client_C), dtype=torch.float64)
        place_C = torch.searchsorted(asked_A, client_C).clamp(max=len(asked_A) - 1)
        return torch.where(asked_A[place_C] == client_C, work_A[place_C], 0.0)

    def asked(self, t: int) -> Tensor:
        """The clients with a row in round t of the log, sorted."""
        return self._round(t)[0]

    def check_rounds(self, rounds: int) -> None:
        """Refuse to replay more rounds than the log has."""
        if self.mode == "replay" and rounds > self.log.rounds:
            raise Mistake(
                f"{self.path} ends with round {self.log.rounds - 1}, and {rounds} rounds are asked for: "
                f"run at most {self.log.rounds} rounds, or use FleetLog(mode='resample')"
            )

    def _round(self, t: int) -> tuple[Tensor, Tensor]:
        self.check_rounds(t + 1)
        round_N, client_N, work_N = self._by_round
        start, stop = np.searchsorted(round_N, [t, t + 1])
        return client_N[start:stop], work_N[start:stop]

    @cached_property
    def _by_round(self) -> tuple[np.ndarray, Tensor, Tensor]:
        """Rounds, clients and work, sorted by round and then by client."""
        client_N = self._client_M[self.log.code_N]
        order_N = np.lexsort((client_N, self.log.round_N))
        work_N = self.log.work_N.astype(np.float64)
        return (
            self.log.round_N[order_N],
            torch.from_numpy(client_N[order_N]),
            torch.from_numpy(work_N[order_N]),
        )

    @cached_property
    def _client_M(self) -> np.ndarray:
        """The client number of every client in the log."""
        number = {name: i for i, name in enumerate(self.names)} if self.names is not None else None
        client_M = np.empty(len(self.log.labels), dtype=np.int64)
        for code, label in enumerate(self.log.labels):
            if number is not None and label in number:
                client_M[code] = number[label]
            elif number is None and label.isdecimal() and int(label) < 2**62:
                client_M[code] = int(label)
            else:
                raise self._unknown(code)
        if len(np.unique(client_M)) < len(client_M):
            raise Mistake(f"{self.path}: a client is written in two ways (such as 7 and 07); use one")
        return client_M

    def _check_clients(self, clients: int) -> None:
        outside_M = self._client_M >= clients
        if outside_M.any():
            raise self._unknown(int(outside_M.argmax()), f"; the data has clients 0..{clients - 1}")

    def _unknown(self, code: int, hint: str = "") -> Mistake:
        row = int((self.log.code_N == code).argmax())
        label = self.log.labels[code]
        if self.names is None:
            hint = hint or "; the clients of this data have no names, so give their numbers, from 0"
        elif len(self.names) <= 200:  # a longer list of names would not help
            hint = f"; {nearest(label, self.names)}"
        return self.log.mistake(row, f"unknown client {label!r}{hint}")

    def _resampled(self, client_C: Tensor, t: int, seed: int) -> Tensor:
        work_N, start_M, count_M = self._by_client
        u_C = uniform(seed, "work", t, ids=client_C)
        if self.by == "fleet":
            return work_N[(u_C * len(work_N)).to(torch.int64)]
        logged_C = (uniform(seed, "logged", ids=client_C) * len(count_M)).to(torch.int64)
        return work_N[start_M[logged_C] + (u_C * count_M[logged_C]).to(torch.int64)]

    @cached_property
    def _by_client(self) -> tuple[Tensor, Tensor, Tensor]:
        """Work sorted by client in the log, the first row of each client, and its number of rows."""
        order_N = np.argsort(self.log.code_N, kind="stable")
        count_M = torch.from_numpy(np.bincount(self.log.code_N, minlength=len(self.log.labels)))
        return torch.from_numpy(self.log.work_N[order_N]), count_M.cumsum(0) - count_M, count_M
