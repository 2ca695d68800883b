"""Participation from the log of a run, replayed; and which clients of a log are which clients of a data set.

Data with names is matched by name. Clients without names are numbered from 0, and a log means these numbers if it has
no others, or has all of them. Any other log is about other clients.

Shape letters: C clients of the cohort, A clients asked, M clients of the log, K clients in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.world.enrolment import ClientNames, Enrolment
from turnout.world.log import TurnoutTable, read_turnout

SHOWN_NAMES = 3  # of each side, in an error


@dataclass(frozen=True)
class TurnoutLog:
    """Participation from a CSV file of round,client,work, or from a run's folder, which has one (turnout.csv): round t
    of the run is round t of the log, and a client without a row is absent.

    path    the file, or the folder
    names   the names of the data's clients; set when the experiment is prepared

    Clients that are in both the log and the data (by name, or by number if the data has no names) behave as in the log.
    """

    path: str
    names: tuple[str, ...] | None = None

    @cached_property
    def log(self) -> TurnoutTable:
        return read_turnout(self.path)

    @property
    def replays(self) -> bool:
        return True

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Self:
        tied = replace(self, names=enrolment.names)
        tied.__dict__["log"] = self.log  # so that it is not read again
        tied.__dict__["match"] = match_clients(self.log, enrolment.names, enrolment.clients, self.replays)
        tied._check_rounds(rounds)
        return tied

    @cached_property
    def match(self) -> Match:
        """Which clients of the log are which of the data's; before `tied_to_clients`, by number."""
        return match_clients(self.log, self.names, None, self.replays)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        self._check_rounds(t + 1)
        logged_A, work_A = self.log.row(t)
        client_A, order_A = self._in_data(logged_A)
        if len(client_A) == 0:
            return torch.zeros(len(client_C), dtype=torch.float64)
        place_C = torch.searchsorted(client_A, client_C).clamp(max=len(client_A) - 1)
        return torch.where(client_A[place_C] == client_C, torch.from_numpy(work_A[order_A])[place_C], 0.0)

    def asked(self, t: int) -> Tensor:
        """The clients of the data with a row in round t of the log, sorted."""
        self._check_rounds(t + 1)
        return self._in_data(self.log.row(t)[0])[0]

    def _in_data(self, logged_A: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """The numbers in the data of those of these clients that own data, sorted; and where each is among them all."""
        client_A = self.match.client_M[logged_A]
        order_A = np.argsort(client_A)
        order_A = order_A[client_A[order_A] >= 0]
        return torch.from_numpy(client_A[order_A]), order_A

    def _check_rounds(self, rounds: int) -> None:
        if self.replays and rounds > self.log.rounds:
            raise UserError(
                f"{self.path} ends with round {self.log.rounds - 1}, and {rounds} rounds are asked for: run at most "
                f"{self.log.rounds} rounds, or use participation 'fleet-log' with mode='blocks'"
            )


@dataclass(frozen=True, eq=False)
class Match:
    """The clients that are in both a log and a data set.

    client_M   the number in the data of every client of the log, -1 for one that owns no data
    clients    how many clients the data has; None if that is not known
    unmatched  the first client of the log that owns no data, and its line; empty if all own data
    hint       the names nearest to it, in words; empty if there are none
    dealt      whether clients of the data that are not in the log behave like a random client of the log
    """

    client_M: np.ndarray
    clients: int | None
    unmatched: str
    hint: str
    dealt: bool

    def places(self, client_C: np.ndarray) -> np.ndarray:
        """Where in the log each of these clients of the data is; -1 if it is not in the log [C]."""
        client_K, place_K = self._by_client
        if not len(client_K):
            return np.full(len(client_C), -1)
        at_C = np.searchsorted(client_K, client_C).clip(max=len(client_K) - 1)
        return np.where(client_K[at_C] == client_C, place_K[at_C], -1)

    @cached_property
    def _by_client(self) -> tuple[np.ndarray, np.ndarray]:
        place_K = np.flatnonzero(self.client_M >= 0)
        place_K = place_K[np.argsort(self.client_M[place_K])]
        return self.client_M[place_K], place_K

    @property
    def matched(self) -> int:
        return int((self.client_M >= 0).sum())

    @property
    def is_partial(self) -> bool:
        """Whether some clients were not matched, so that a warning is due; in a replay no row means not asked."""
        return self.matched < len(self.client_M) or (self.dealt and self._outside > 0)

    @property
    def _outside(self) -> int:
        return 0 if self.clients is None else self.clients - self.matched

    def sentence(self) -> str:
        """How many clients match, and what happens to the others."""
        logged = len(self.client_M)
        if not self.matched:
            return (
                f"the data's {self.clients:,} clients have no names and are not the {logged:,} clients in the log "
                f"({self.unmatched}, ...): each behaves like one of them, chosen at random (reading.owners names a "
                "file that says which client owns which data)"
            )
        words = f"{self.matched:,} of {logged:,} clients in the log own data"
        if more := logged - self.matched:
            words += f": {self.unmatched} " + (f"and {more - 1:,} more do not" if more > 1 else "does not")
            words += f" ({self.hint})" if self.hint else ""
        if self._outside:
            then = "each behaves like one of its clients, chosen at random" if self.dealt else "they stay absent"
            words += f"; {self._outside:,} of the data's {self.clients:,} clients are not in the log: {then}"
        return words


def match_clients(log: TurnoutTable, names: tuple[str, ...] | None, clients: int | None, replay: bool) -> Match:
    """Match a log with the clients of a data set; a UserError if no name matches, or a replay is impossible."""
    known = ClientNames(names, clients)
    number_M = [known.number(label) for label in log.names]
    client_M = np.array([-1 if number is None else number for number in number_M], dtype=np.int64)
    client_K = client_M[client_M >= 0]
    if names is None and len(client_K) < len(client_M) and len(np.unique(client_K)) != clients:
        if replay:
            place = int((client_M < 0).argmax())
            where = "" if log.line_M is None else f", line {log.line_M[place]}"
            hint = "the clients of this data have no names, so give their numbers, from 0"
            if log.names[place].isdecimal():
                hint = f"the data has clients 0..{(clients or 0) - 1}"
            raise UserError(
                f"{log.path}{where}: unknown client {log.names[place]!r}; {hint}, or use reading.owners of "
                "participation 'fleet-log', a CSV file of client,owner"
            )
        client_M[:] = -1  # numbers of something else
    elif len(np.unique(client_K)) < len(client_K):
        raise UserError(f"{log.path}: a client is written in two ways (such as 7 and 07); use one")
    elif not len(client_K):
        shown = [
            ", ".join(map(repr, some[:SHOWN_NAMES])) + (", ..." if len(some) > SHOWN_NAMES else "")
            for some in (log.names, names or ())
        ]
        raise UserError(
            f"{log.path}: none of the {log.clients:,} clients in the log owns data: the log has {shown[0]}, the data "
            f"{shown[1]}; if they are the same clients under other names, use a CSV file of client,owner (each client "
            "of the log, and whose data it has): reading.owners of participation 'fleet-log', or --owners"
        )
    if (client_M >= 0).all():
        return Match(client_M, clients, "", "", dealt=not replay)
    first = int((client_M < 0).argmax())
    line = "" if log.line_M is None else f" (line {log.line_M[first]})"
    hint = known.hint(log.names[first])
    return Match(client_M, clients, f"{log.names[first]!r}{line}", hint, dealt=not replay)
