"""Selection from a fleet's log in any format."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from turnout.fleet.fleet_participation import FleetLog
from turnout.fleet.reading import Reading
from turnout.parts.selection import AsLogged


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
