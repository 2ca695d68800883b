"""Participation and selection from a fleet's log in any format, and a comparison of its draws with the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from turnout.fleet.fit import fit
from turnout.fleet.fleet_model import FleetModel
from turnout.fleet.read_log import read_fleet
from turnout.fleet.reading import Reading
from turnout.parts.selection import AsLogged
from turnout.world.blocks import Blocks, Sources, block_length
from turnout.world.log import ParticipationLog
from turnout.world.log_statistics import Statistics, drawn, mean_of, presence, statistics
from turnout.world.turnout_log import TurnoutLog

CLIENTS, ROUNDS, SEEDS = 200, 1000, 3  # of a comparison, at most


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


@dataclass(frozen=True)
class LogComparison:
    """A log beside draws from it, in the same statistics; those of draws are means over seeds.

    log      statistics of the log
    blocks   of draws in mode "blocks"
    fitted   of draws in mode "fitted"
    stretch  rounds of a block
    """

    log: Statistics
    blocks: Statistics
    fitted: Statistics
    stretch: int


def compare_with_log(log: ParticipationLog, model: FleetModel) -> LogComparison:
    """Draw from a log in both modes, and compare."""
    day, length = log.rounds_a_day or 1, block_length(log)
    blocks = Blocks(log, Sources(log.clients), length)
    by_turnout = Sources(log.clients, weight_M=log.asked_M)

    clients, rounds = min(log.clients, CLIENTS), min(log.rounds, ROUNDS)

    def mean(draw: Callable[[Tensor, int, int], Tensor]) -> Statistics:
        tables = [drawn(lambda c, t, seed=seed: draw(c, t, seed), clients, rounds) for seed in range(SEEDS)]  # type: ignore[misc]
        return mean_of([statistics(work_TC, day) for work_TC in tables])

    return LogComparison(
        log=statistics(presence(log), day),
        blocks=mean(blocks.fraction),
        fitted=mean(lambda client_C, t, seed: model.fraction(client_C, t, seed, by_turnout)),
        stretch=length,
    )
