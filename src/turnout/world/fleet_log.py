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

from turnout.errors import UserError, nearest
from turnout.fleet.blocks import Blocks, Whose, stretch_length
from turnout.fleet.fit import fit
from turnout.fleet.fitted import FleetModel
from turnout.fleet.fleet import Fleet
from turnout.fleet.match import Match, match_clients
from turnout.fleet.read import read_fleet
from turnout.fleet.reading import Reading
from turnout.fleet.sources import Sources
from turnout.world.enrolment import Enrolment

Mode = Literal["replay", "blocks", "fitted"]


@dataclass(frozen=True)
class FleetLog:
    """Participation from a fleet's log: CSV, Parquet or a run folder, read as `reading` says.

    mode="replay"  round t of the run is round t of the log: the logged work for a client with a row, absent without
                   one (`asked(t)` says who has; selection AsLogged asks exactly those)
    mode="blocks"  whole stretches of the log's rounds, one after the other, `length` rounds each (None: chosen from
                   the log), of="fleet" the same for all clients, of="client" for each its own
    mode="fitted"  a model of the log: clients that come and go by the hour, groups that are away together, outages

    Clients that are in both the log and the data (`match`: by name, or by number if the data has no names) take after
    themselves. Others are absent in a replay, and in the other modes take after a client of the log at random.
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
                raise UserError(f"participation FleetLog: no {what} {value!r}; {nearest(value, known)}")
        if self.mode != "blocks" and (self.of != "fleet" or self.length is not None):
            raise UserError("participation FleetLog: `of` and `length` are about stretches; set mode='blocks'")
        if self.length is not None and self.length < 1:
            raise UserError(f"participation FleetLog: length = {self.length}: a stretch has 1 round or more")

    @cached_property
    def log(self) -> Fleet:
        """The log, read once."""
        return read_fleet(self.path, self.reading)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> FleetLog:
        """This log for these clients and so many rounds, checked."""
        tied = replace(self, names=enrolment.names)
        tied.__dict__["log"] = self.log  # so that it is not read again
        tied.__dict__["match"] = match_clients(self.log, enrolment.names, enrolment.clients, self.mode == "replay")
        tied.__dict__["_sources"] = replace(self._sources, match=tied.match)
        tied._check_rounds(rounds)
        return tied

    @cached_property
    def match(self) -> Match:
        """Which clients of the log are which of the data's; before `tied_to_clients`, by number."""
        return match_clients(self.log, self.names, None, self.mode == "replay")

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
        client_A = self.match.client_M[logged_A]
        return torch.from_numpy(np.sort(client_A[client_A >= 0]))

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
            raise UserError(
                f"{self.path} ends with round {self.log.rounds - 1}, and {rounds} rounds are asked for: "
                f"run at most {self.log.rounds} rounds, or use FleetLog(mode='blocks')"
            )

    def _round(self, t: int) -> tuple[Tensor, Tensor]:
        """The clients with a row in round t, sorted, and their work."""
        self._check_rounds(t + 1)
        logged_A, work_A = self.log.row(t)
        client_A = self.match.client_M[logged_A]
        order_A = np.argsort(client_A)
        order_A = order_A[client_A[order_A] >= 0]
        return torch.from_numpy(client_A[order_A]), torch.from_numpy(work_A[order_A])
