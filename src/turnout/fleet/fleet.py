"""What a fleet's log says, as one record: who was asked in which round, who came, and how much of the work each did.

Rows are kept, not a table of rounds x clients, so 10,000 clients in 10,000 rounds fit in memory.

Shape letters: N rows, M clients of the log, T rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from turnout.errors import UserError
from turnout.fleet.cells import Clock
from turnout.fleet.reading import Missing

UNLIKELY = 1e-3  # a silence at the log's ends that is less likely than this is no absence: the client was not there yet


@dataclass(frozen=True)
class Fleet:
    """A log of rounds 0 .. rounds - 1. Row n says that client `client_N[n]` was asked in round `round_N[n]` and did
    `work_N[n]` of the work (0 to 1; 0: asked and absent). Rows are sorted by round, then client, each pair once.

    names       what the clients are called in the log; clients are numbered in this order
    missing     what no row means: "absent" (asked, like every member of the fleet), or "not-asked"
    start_T     when each round began, in seconds; None where the log has no times
    clock       "calendar": `start_T` is since 1970, so that hours and weekdays are known; "relative": since an unknown
                beginning
    every       seconds from round to round, where times are known
    examples_M  how many examples each client has, where the log says
    line_M      the line of the log in which each client is first
    assumed     what was guessed about the log, in sentences
    """

    path: str
    names: tuple[str, ...]
    rounds: int
    round_N: np.ndarray
    client_N: np.ndarray
    work_N: np.ndarray
    missing: Missing = "absent"
    start_T: np.ndarray | None = None
    clock: Clock | None = None
    every: float | None = None
    examples_M: np.ndarray | None = None
    line_M: np.ndarray | None = None
    assumed: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        return len(self.names)

    @property
    def has_zeros(self) -> bool:
        """Whether the log itself has clients that were asked and absent."""
        return bool((self.work_N == 0).any())

    def row(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """The clients with a row in round t, sorted, and the work of each."""
        rows = slice(self._from_T[t], self._from_T[t + 1])
        return self.client_N[rows], self.work_N[rows]

    def asked(self, t: int) -> np.ndarray:
        """The clients asked in round t, sorted: those with a row, and all members where no row means absent."""
        if self.missing == "not-asked":
            return self.row(t)[0]
        return np.flatnonzero((self.joined_M <= t) & (t < self.left_M))

    def work(self, t: int) -> np.ndarray:
        """The work of every client in round t [M]: NaN where it was not asked, 0 where it was absent."""
        work_M = np.full(self.clients, np.nan)
        work_M[self.asked(t)] = 0.0
        client_A, work_A = self.row(t)
        work_M[client_A] = work_A
        return work_M

    def of_client(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """The rounds in which a client has a row, sorted, and its work in each."""
        order_N, from_M = self._by_client
        rows_A = order_N[from_M[client] : from_M[client + 1]]
        return self.round_N[rows_A], self.work_N[rows_A]

    @cached_property
    def asked_M(self) -> np.ndarray:
        """In how many rounds each client was asked."""
        if self.missing == "not-asked":
            return np.bincount(self.client_N, minlength=self.clients)
        return self.left_M - self.joined_M

    def member_rounds(self, client: int) -> tuple[int, int]:
        """From which round to before which round a client belongs to the fleet."""
        return int(self.joined_M[client]), int(self.left_M[client])

    @cached_property
    def joined_M(self) -> np.ndarray:
        """The round from which each client belongs to the fleet: 0, or its first row where it came later.

        A client whose k visits were scattered over T rounds is silent for the first f of them with probability
        (1 - f / T)^k. Where that is below UNLIKELY it was not absent but had not joined. Visits are stretches of
        presence (of being asked, where no row means not asked), because rounds in a row say little more than one.
        """
        first_M, _, visits_M = self._seen
        return np.where(self._unlikely(first_M, visits_M), first_M, 0)

    @cached_property
    def left_M(self) -> np.ndarray:
        """The round from which each client belongs to the fleet no more; `rounds` where it does to the end."""
        _, last_M, visits_M = self._seen
        gone_M = self._unlikely(self.rounds - 1 - last_M, visits_M)
        return np.where(gone_M, last_M + 1, self.rounds)

    def _unlikely(self, silent_M: np.ndarray, visits_M: np.ndarray) -> np.ndarray:
        return visits_M * np.log1p(-np.minimum(silent_M / self.rounds, 1 - 1e-12)) < np.log(UNLIKELY)

    @cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first and the last round in which each client is seen, and in how many stretches [M]."""
        order_N, _ = self._by_client
        if self.missing == "absent":
            order_N = order_N[self.work_N[order_N] > 0]
        round_n, client_n = self.round_N[order_N], self.client_N[order_N]
        first_M, last_M = np.zeros(self.clients, np.int64), np.full(self.clients, self.rounds - 1)
        first_M[client_n[::-1]], last_M[client_n] = round_n[::-1], round_n
        begins_n = np.ones(len(round_n), dtype=bool)
        begins_n[1:] = (np.diff(client_n) != 0) | (np.diff(round_n) > 1)
        return first_M, last_M, np.bincount(client_n[begins_n], minlength=self.clients)

    @cached_property
    def _from_T(self) -> np.ndarray:
        return np.searchsorted(self.round_N, np.arange(self.rounds + 1))

    @cached_property
    def _by_client(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows by client and then by round, and where each client's begin."""
        order_N = np.argsort(self.client_N, kind="stable")
        count_M = np.bincount(self.client_N, minlength=self.clients)
        return order_N, np.concatenate([[0], count_M.cumsum()])

    def rows(self, whole: bool = False) -> list[tuple[int, str, float]]:
        """(round, client, work) as a turnout CSV has them; `whole`: also a 0 for every absence that is implied."""
        if whole and self.missing == "absent":
            return [
                (t, self.names[client], float(work_M[client]))
                for t in range(self.rounds)
                for work_M in [self.work(t)]
                for client in np.flatnonzero(~np.isnan(work_M))
            ]
        triples = zip(self.round_N.tolist(), self.client_N.tolist(), self.work_N.tolist(), strict=True)
        return [(t, self.names[client], work) for t, client, work in triples]

    def between(self, first: int, stop: int) -> Fleet:
        """The rounds first .. stop - 1 of the log, counted from 0; all clients stay."""
        if not 0 <= first < stop <= self.rounds:
            raise UserError(f"{self.path} has rounds 0..{self.rounds - 1}: there is no stretch from {first} to {stop}")
        rows = slice(self._from_T[first], self._from_T[stop])
        return replace(
            self,
            rounds=stop - first,
            round_N=self.round_N[rows] - first,
            client_N=self.client_N[rows],
            work_N=self.work_N[rows],
            start_T=None if self.start_T is None else self.start_T[first:stop],
        )
