"""Participation and selection from a fleet's log in any format."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from turnout.fleet.fleet_model import FleetModel, fit
from turnout.fleet.read_log import read_fleet
from turnout.fleet.reading import Reading
from turnout.parts.selection import AsLogged
from turnout.world.blocks import Sources
from turnout.world.log import ParticipationLog
from turnout.world.turnout_log import TurnoutLog


@dataclass(frozen=True)
class FleetLog(TurnoutLog):
    """Participation from a fleet's log: CSV, Parquet, FedScale's trace or a run folder, read as `reading` says.

    reading  how the log is read
    mode     "replay" and "blocks" as for `TurnoutLog`, or "fitted": a model of the log, with clients that come and go
             by the hour, groups that are away together, and outages
    and the other settings of `TurnoutLog`
    """

    reading: Reading = field(default_factory=Reading)
    modes: ClassVar[tuple[str, ...]] = ("replay", "blocks", "fitted")

    @cached_property
    def log(self) -> ParticipationLog:
        return read_fleet(self.path, self.reading)

    @cached_property
    def sources(self) -> Sources:
        """Blocks have stand-ins for clients that are not members; the model assigns clients by how often asked."""
        return Sources(self.log.clients, weight_M=self.log.asked_M if self.mode == "fitted" else None)

    @cached_property
    def _model(self) -> FleetModel:
        return fit(self.log)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        if self.mode == "fitted":
            return self._model.fraction(client_C, t, seed, self.sources)
        return super().fraction(client_C, t, full_work, seed, groups)

    def asked(self, t: int) -> Tensor:
        """The clients with a row in round t of the log, sorted; all members if `reading` says that no row is absent."""
        if self.reading.missing != "absent":
            return super().asked(t)
        self._check_rounds(t + 1)
        return self._in_data(self.log.asked(t))[0]


@dataclass(frozen=True)
class AsFleetLog(AsLogged):
    """Ask the clients that a fleet's log asked, read as `reading` says: members with a row in round t, or all members
    if it says that no row means absent.

    path     the log
    names    the names of the data's clients; set when the experiment is prepared
    reading  how the log is read
    """

    reading: Reading = field(default_factory=Reading)

    @cached_property
    def log(self) -> FleetLog:
        return FleetLog(self.path, names=self.names, reading=self.reading)
