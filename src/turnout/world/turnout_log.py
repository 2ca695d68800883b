"""Participation from the log of a run: replayed as it was, or drawn from it for any number of clients and rounds.

Shape letters: C clients of the cohort, A clients asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self, get_args

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.world.blocks import Blocks, Sources, Whose, block_length
from turnout.world.client_names import Match, match_clients
from turnout.world.enrolment import Enrolment
from turnout.world.log import ParticipationLog, read_turnout


@dataclass(frozen=True)
class TurnoutLog:
    """Participation from a CSV file of round,client,work, or from a run's folder, which has one (turnout.csv).

    path    the file, or the folder
    mode    "replay": round t of the run is round t of the log, and a client without a row is absent. "blocks": whole
            blocks of the log's rounds, one after the other
    of      whose blocks: "fleet", the same for all clients, or "client", for each its own
    length  rounds of a block; None: chosen from the log
    names   the names of the data's clients; set when the experiment is prepared

    Clients that are in both the log and the data (by name, or by number if the data has no names) behave as in the log.
    Others are absent in a replay, and in the other modes behave like a client of the log, chosen at random.
    """

    path: str
    mode: str = "replay"
    of: Whose = "fleet"
    length: int | None = None
    names: tuple[str, ...] | None = None
    modes: ClassVar[tuple[str, ...]] = ("replay", "blocks")

    def __post_init__(self) -> None:
        kind = f"participation {type(self).__name__}"
        for what, value, known in (("mode", self.mode, self.modes), ("of", self.of, get_args(Whose))):
            if value not in known:
                raise UserError(f"{kind}: no {what} {value!r}; {nearest(value, known)}")
        if self.mode != "blocks" and (self.of != "fleet" or self.length is not None):
            raise UserError(f"{kind}: `of` and `length` are about blocks; set mode='blocks'")
        if self.length is not None and self.length < 1:
            raise UserError(f"{kind}: length = {self.length}: a block has 1 round or more")

    @cached_property
    def log(self) -> ParticipationLog:
        return read_turnout(self.path)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Self:
        tied = replace(self, names=enrolment.names)
        tied.__dict__["log"] = self.log  # so that it is not read again
        tied.__dict__["match"] = match_clients(self.log, enrolment.names, enrolment.clients, self.mode == "replay")
        tied.__dict__["sources"] = replace(self.sources, match=tied.match)
        tied._check_rounds(rounds)
        return tied

    @cached_property
    def match(self) -> Match:
        """Which clients of the log are which of the data's; before `tied_to_clients`, by number."""
        return match_clients(self.log, self.names, None, self.mode == "replay")

    @cached_property
    def sources(self) -> Sources:
        return Sources(self.log.clients)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        if self.mode == "blocks":
            return self._blocks.fraction(client_C, t, seed)
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

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.log, self.sources, self.length or block_length(self.log), self.of)

    def _check_rounds(self, rounds: int) -> None:
        if self.mode == "replay" and rounds > self.log.rounds:
            raise UserError(
                f"{self.path} ends with round {self.log.rounds - 1}, and {rounds} rounds are asked for: "
                f"run at most {self.log.rounds} rounds, or use mode='blocks'"
            )
