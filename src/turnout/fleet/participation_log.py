"""A fleet's log as a record: who was asked when, with the times of rounds, who was a member, and the fleet's season.

Shape letters: N rows, M clients of the log, T rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from turnout.world.log import TurnoutTable

Missing = Literal["absent", "not-asked"]

UNLIKELY = 1e-3  # a less likely silence at an end of the log is not an absence: the client was not a member
DAY = 86400.0
LEAST_DAYS, LEAST_WEEKS = 2, 4  # that a log must cover for rounds to be compared by hour, or by hour and weekday


@dataclass(frozen=True)
class ParticipationLog(TurnoutTable):
    """A fleet's log: the rows of a `TurnoutTable`, and what else the log tells.

    missing      what no row means: "absent" (asked, like every member of the fleet), or "not-asked"
    start_T      when each round began, in seconds; None if the log has no times
    is_calendar  whether `start_T` counts from 1970, so that hours and weekdays are known
    every        seconds from round to round, if times are known
    examples_M   how many examples each client has, if the log has that
    label_M      the label of each client ("" if unknown), if the log has that
    assumed      guesses about the log, in sentences
    """

    missing: Missing = "absent"
    start_T: np.ndarray | None = None
    is_calendar: bool = False
    every: float | None = None
    examples_M: np.ndarray | None = None
    label_M: tuple[str, ...] | None = None
    assumed: tuple[str, ...] = ()

    def asked(self, t: int) -> np.ndarray:
        """The clients asked in round t, sorted: those with a row, and all members where no row means absent."""
        if self.missing == "not-asked":
            return self.row(t)[0]
        return np.flatnonzero((self.joined_M <= t) & (t < self.left_M))

    def work(self, t: int) -> np.ndarray:
        """The work of every client in round t [M]: NaN if it was not asked, 0 if it was absent."""
        work_M = np.full(self.clients, np.nan)
        work_M[self.asked(t)] = 0.0
        client_A, work_A = self.row(t)
        work_M[client_A] = work_A
        return work_M

    @cached_property
    def asked_M(self) -> np.ndarray:
        """In how many rounds each client was asked."""
        if self.missing == "not-asked":
            return np.bincount(self.client_N, minlength=self.clients)
        return self.left_M - self.joined_M

    @cached_property
    def joined_M(self) -> np.ndarray:
        """The round from which each client is a member: 0, or its first row if it joined later.

        A client whose k visits are scattered over T rounds is silent in the first f of them with probability
        (1 - f / T)^k. If that is below UNLIKELY, it was not absent but had not joined. A visit is a sequence of
        consecutive rounds with presence (of being asked, where no row means not asked).
        """
        first_M, _, visits_M = self._seen
        return np.where(self._unlikely(first_M, visits_M), first_M, 0)

    @cached_property
    def left_M(self) -> np.ndarray:
        """The first round in which each client is no longer a member; `rounds` if it stays to the end."""
        _, last_M, visits_M = self._seen
        return np.where(self._unlikely(self.rounds - 1 - last_M, visits_M), last_M + 1, self.rounds)

    def _unlikely(self, silent_M: np.ndarray, visits_M: np.ndarray) -> np.ndarray:
        return visits_M * np.log1p(-np.minimum(silent_M / self.rounds, 1 - 1e-12)) < np.log(UNLIKELY)

    @cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first and the last round in which each client is seen, and its number of visits [M]."""
        first_M, last_M, visits_M = (np.full(self.clients, value, np.int64) for value in (-1, -2, 0))
        for t in np.flatnonzero(np.diff(self.first_row_T)):
            client_A, work_A = self.row(int(t))
            if self.missing == "absent":
                client_A = client_A[work_A > 0]
            visits_M[client_A] += last_M[client_A] != t - 1
            first_M[client_A] = np.where(first_M[client_A] < 0, t, first_M[client_A])
            last_M[client_A] = t
        never_M = first_M < 0
        return np.where(never_M, 0, first_M), np.where(never_M, self.rounds - 1, last_M), visits_M

    @cached_property
    def rounds_a_day(self) -> int | None:
        """How many rounds a day has, if that is a whole number above 1 and the log covers at least two days."""
        return self._rounds_in(DAY, LEAST_DAYS)

    @cached_property
    def season(self) -> int:
        """After how many rounds the same hour comes again: the rounds of a week, else of a day, else 1."""
        return self._rounds_in(7 * DAY, LEAST_WEEKS) or self.rounds_a_day or 1

    def _rounds_in(self, seconds: float, least: int) -> int | None:
        if self.every is None or self.every <= 0:
            return None
        rounds = round(seconds / self.every)
        whole = rounds > 1 and abs(rounds * self.every - seconds) < 0.01 * seconds
        return rounds if whole and self.rounds >= least * rounds else None

    def of_clients(self, chosen_C: np.ndarray) -> ParticipationLog:
        """The log of some of its clients, sorted by their places."""
        place_M = np.full(self.clients, -1, np.int32)
        place_M[chosen_C] = np.arange(len(chosen_C))
        row_n = np.flatnonzero(place_M[self.client_N] >= 0)
        return replace(
            self,
            names=tuple(self.names[place] for place in chosen_C),
            round_N=self.round_N[row_n],
            client_N=place_M[self.client_N[row_n]],
            work_N=self.work_N[row_n],
            line_M=None,
            examples_M=None if self.examples_M is None else self.examples_M[chosen_C],
            label_M=None if self.label_M is None else tuple(self.label_M[place] for place in chosen_C),
        )

    def since(self, t: int) -> ParticipationLog:
        """The log from round t on; clients that are not seen in it are left out."""
        row_n = np.arange(self.first_row_T[t], len(self.round_N))
        kept = replace(
            self,
            rounds=self.rounds - t,
            round_N=self.round_N[row_n] - np.int32(t),
            client_N=self.client_N[row_n],
            work_N=self.work_N[row_n],
            start_T=None if self.start_T is None else self.start_T[t:],
        )
        return kept.of_clients(np.unique(kept.client_N))

    def whole_rows(self) -> list[tuple[int, str, float]]:
        """The rows, and a 0 for every absence without one."""
        if self.missing == "not-asked":
            return self.rows()
        return [
            (t, self.names[client], float(work_M[client]))
            for t in range(self.rounds)
            for work_M in [self.work(t)]
            for client in np.flatnonzero(~np.isnan(work_M))
        ]
