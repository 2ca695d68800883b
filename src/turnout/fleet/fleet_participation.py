"""Participation and selection from a fleet's log in any format."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self, get_args

from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.fleet.blocks import Blocks, Sources, Whose, block_length
from turnout.fleet.fleet_model import FleetModel, fit
from turnout.fleet.participation_log import ParticipationLog
from turnout.fleet.read_log import read_fleet
from turnout.fleet.reading import Reading
from turnout.parts.selection import AsLogged
from turnout.world.enrolment import Enrolment
from turnout.world.log import find_turnout
from turnout.world.turnout_log import TurnoutLog

MODES = ("replay", "blocks", "fitted")


@lru_cache(maxsize=2)  # many runs of one process read the same log
def _read_once(path: str, reading: Reading, stamp: tuple[int, int] | None) -> ParticipationLog:
    """A log as it was at the time of its stamp."""
    return read_fleet(path, reading)


@dataclass(frozen=True)
class FleetLog(TurnoutLog):
    """Participation from a fleet's log in any format, or a run folder, read as `reading` says.

    path     the log
    names    the names of the data's clients; set when the experiment is prepared
    mode     "replay": round t of the run is round t of the log, and a client without a row is absent; "blocks": whole
             blocks of the log's rounds, one after the other; "fitted": a model of the log, with clients that come and
             go by the hour, groups that are away together, and outages
    of       whose blocks: "fleet", the same for all clients, or "client", for each its own
    length   rounds of a block; None: chosen from the log
    again    blocks are those of a bootstrap log with this number, made of stretches of the log drawn with replacement,
             as another log of the same fleet might be; None: those of the log
    reading  how the log is read

    Clients of the data that are not in the log are absent in a replay, and in the other modes behave like a client of
    the log, chosen at random.
    """

    mode: str = "replay"
    of: Whose = "fleet"
    length: int | None = None
    again: int | None = None
    reading: Reading = field(default_factory=Reading)

    def __post_init__(self) -> None:
        for what, value, known in (("mode", self.mode, MODES), ("of", self.of, get_args(Whose))):
            if value not in known:
                raise UserError(f"participation FleetLog: no {what} {value!r}; {nearest(value, known)}")
        if self.mode != "blocks" and (self.of, self.length, self.again) != ("fleet", None, None):
            raise UserError("participation FleetLog: `of`, `length` and `again` are about blocks; set mode='blocks'")
        if self.length is not None and self.length < 1:
            raise UserError(f"participation FleetLog: length = {self.length}: a block has 1 round or more")

    @cached_property
    def log(self) -> ParticipationLog:
        file = find_turnout(Path(self.path))
        stamp = (file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else None
        return _read_once(self.path, self.reading, stamp)

    @property
    def replays(self) -> bool:
        return self.mode == "replay"

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Self:
        tied = super().tied_to_clients(enrolment, rounds)
        tied.__dict__["sources"] = replace(self.sources, match=tied.match)
        return tied

    @cached_property
    def sources(self) -> Sources:
        """Blocks have stand-ins for clients that are not members; the model assigns clients by how often asked."""
        return Sources(self.log.clients, weight_M=self.log.asked_M if self.mode == "fitted" else None)

    @cached_property
    def _model(self) -> FleetModel:
        return fit(self.log)

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.log, self.sources, self.length or block_length(self.log), self.of, self.again)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        if self.mode == "fitted":
            return self._model.fraction(client_C, t, seed, self.sources)
        if self.mode == "blocks":
            return self._blocks.fraction(client_C, t, seed)
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
