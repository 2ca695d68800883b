"""Participation from a fleet's log: a CSV of `round,client,work` (turnout_csv.py).

Every run exports the turnout it observed in this form, so a deployment can be replayed in-process; the log of a real
fleet, or of a measurement, can be resampled for any number of clients.

Shape letters: C clients of the cohort, N rows of the log, M clients that occur in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from turnout.errors import Mistake, nearest
from turnout.rng import uniform
from turnout.world.client_names import ClientNames
from turnout.world.enrolment import Enrolment
from turnout.world.turnout_csv import TurnoutLog, read_turnout


@dataclass(frozen=True)
class FleetLog:
    """Participation from a log of `round,client,work`.

    mode="replay"    round t of the run is round t of the log: the logged fraction for a client with a row,
                     absent without one (`asked(t)` says who has; selection AsLogged asks exactly those)
    mode="resample"  every simulated client has one of the logged clients for good, at random, and draws one
                     of its rows each round (by="client"); or draws from all rows of the log (by="fleet")

    For a replay, the log has the client names of the data, or their numbers if the data has no names. A resampled log
    may have any client names.
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
    def log(self) -> TurnoutLog:
        """The rows, read once."""
        return read_turnout(self.path)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> FleetLog:
        """This log for these clients and so many rounds, checked."""
        log = replace(self, names=enrolment.names)
        log.__dict__["log"] = self.log  # so that it is not read again
        if self.mode == "replay":
            log._check_clients(enrolment.clients)
            log._check_rounds(rounds)
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

    def _check_rounds(self, rounds: int) -> None:
        """Refuse to replay more rounds than the log has."""
        if self.mode == "replay" and rounds > self.log.rounds:
            raise Mistake(
                f"{self.path} ends with round {self.log.rounds - 1}, and {rounds} rounds are asked for: "
                f"run at most {self.log.rounds} rounds, or use FleetLog(mode='resample')"
            )

    def _round(self, t: int) -> tuple[Tensor, Tensor]:
        self._check_rounds(t + 1)
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
        known = ClientNames(self.names)
        client_M = np.empty(len(self.log.labels), dtype=np.int64)
        for code, label in enumerate(self.log.labels):
            number = known.number(label)
            if number is None:
                raise self._unknown(code)
            client_M[code] = number
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
        elif names := ClientNames(self.names).hint(label):
            hint = f"; {names}"
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
