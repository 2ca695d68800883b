"""Participation from a fleet's log (fleet/): replayed as it was, or drawn from it for any number of clients and rounds.

Every run exports the turnout it observed as a log, so a deployment can be replayed in-process.

Shape letters: C clients of the cohort, A clients asked, M clients of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from turnout.errors import Mistake, nearest
from turnout.world.client_names import ClientNames
from turnout.world.enrolment import Enrolment
from turnout.world.fleet.blocks import Blocks, Whose, stretch_length
from turnout.world.fleet.fit import fit
from turnout.world.fleet.fitted import FleetModel
from turnout.world.fleet.fleet import Fleet
from turnout.world.fleet.read import read_fleet
from turnout.world.fleet.reading import Reading
from turnout.world.fleet.sources import Sources, named_in

Mode = Literal["replay", "blocks", "fitted"]


@dataclass(frozen=True)
class FleetLog:
    """Participation from a fleet's log: CSV, Parquet or a run folder, read as `reading` says.

    mode="replay"  round t of the run is round t of the log: the logged work for a client with a row, absent without
                   one (`asked(t)` says who has; selection AsLogged asks exactly those)
    mode="blocks"  whole stretches of the log's rounds, one after the other, `length` rounds each (None: chosen from
                   the log), of="fleet" the same for all clients, of="client" for each its own
    mode="fitted"  a model of the log: clients that come and go by the hour, groups that are away together, outages

    For a replay, the log has the client names of the data, or their numbers if the data has no names. In the other
    modes clients that the log names take after themselves, and others are dealt the log's clients at random.
    """

    path: str
    mode: Mode = "replay"
    of: Whose = "fleet"
    length: int | None = None
    reading: Reading = field(default_factory=Reading)
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for what, value, known in (("mode", self.mode, get_args(Mode)), ("of", self.of, get_args(Whose))):
            if value not in known:
                raise Mistake(f"participation FleetLog: no {what} {value!r}; {nearest(value, known)}")
        if self.mode != "blocks" and (self.of != "fleet" or self.length is not None):
            raise Mistake("participation FleetLog: `of` and `length` are about stretches; set mode='blocks'")
        if self.length is not None and self.length < 1:
            raise Mistake(f"participation FleetLog: length = {self.length}: a stretch has 1 round or more")

    @cached_property
    def log(self) -> Fleet:
        """The log, read once."""
        return read_fleet(self.path, self.reading)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> FleetLog:
        """This log for these clients and so many rounds, checked."""
        tied = replace(self, names=enrolment.names)
        tied.__dict__["log"] = self.log  # so that it is not read again
        if self.mode == "replay":
            tied._check_clients(enrolment.clients)
            tied._check_rounds(rounds)
        else:
            own = named_in(self.log.names, enrolment.names, enrolment.clients)
            tied.__dict__["_sources"] = replace(self._sources, own=own)
        return tied

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        if self.mode == "blocks":
            return self._blocks.fraction(client_C, t, seed)
        if self.mode == "fitted":
            return self._model.fraction(client_C, t, seed, self._sources)
        asked_A, work_A = self._round(t)
        if len(asked_A) == 0:
            return torch.zeros(len(client_C), dtype=torch.float64)
        place_C = torch.searchsorted(asked_A, client_C).clamp(max=len(asked_A) - 1)
        return torch.where(asked_A[place_C] == client_C, work_A[place_C], 0.0)

    def asked(self, t: int) -> Tensor:
        """The clients with a row in round t of the log, sorted; all members where `reading` says no row is absent."""
        self._check_rounds(t + 1)
        logged_A = self.log.asked(t) if self.reading.missing == "absent" else self.log.row(t)[0]
        return torch.from_numpy(np.sort(self._client_M[logged_A]))

    @cached_property
    def _sources(self) -> Sources:
        """Stretches of the log have stand-ins for those that are no members; the model deals members the more often."""
        return Sources(self.log.clients, weight_M=self.log.asked_M if self.mode == "fitted" else None)

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.log, self._sources, self.length or stretch_length(self.log), self.of)

    @cached_property
    def _model(self) -> FleetModel:
        return fit(self.log)

    def _check_rounds(self, rounds: int) -> None:
        """Refuse to replay more rounds than the log has."""
        if self.mode == "replay" and rounds > self.log.rounds:
            raise Mistake(
                f"{self.path} ends with round {self.log.rounds - 1}, and {rounds} rounds are asked for: "
                f"run at most {self.log.rounds} rounds, or use FleetLog(mode='blocks')"
            )

    def _round(self, t: int) -> tuple[Tensor, Tensor]:
        """The clients with a row in round t, sorted, and their work."""
        self._check_rounds(t + 1)
        logged_A, work_A = self.log.row(t)
        client_A = self._client_M[logged_A]
        order_A = np.argsort(client_A)
        return torch.from_numpy(client_A[order_A]), torch.from_numpy(work_A[order_A])

    @cached_property
    def _client_M(self) -> np.ndarray:
        """The client number of every client in the log."""
        known = ClientNames(self.names)
        client_M = np.empty(self.log.clients, dtype=np.int64)
        for i, label in enumerate(self.log.names):
            number = known.number(label)
            if number is None:
                raise self._unknown(i)
            client_M[i] = number
        if len(np.unique(client_M)) < len(client_M):
            raise Mistake(f"{self.path}: a client is written in two ways (such as 7 and 07); use one")
        return client_M

    def _check_clients(self, clients: int) -> None:
        outside_M = self._client_M >= clients
        if outside_M.any():
            raise self._unknown(int(outside_M.argmax()), f"; the data has clients 0..{clients - 1}")

    def _unknown(self, logged: int, hint: str = "") -> Mistake:
        label, line_M = self.log.names[logged], self.log.line_M
        if self.names is None:
            hint = hint or "; the clients of this data have no names, so give their numbers, from 0"
        elif names := ClientNames(self.names).hint(label):
            hint = f"; {names}"
        where = "" if line_M is None else f", line {line_M[logged]}"
        return Mistake(f"{self.path}{where}: unknown client {label!r}{hint}")
