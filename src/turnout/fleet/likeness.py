"""A log beside what is drawn from it: the fit of each mode, in the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from turnout.fleet.blocks import Blocks, stretch_length
from turnout.fleet.fitted import FleetModel
from turnout.fleet.fleet import Fleet
from turnout.fleet.seasons import rounds_a_day
from turnout.fleet.sources import Sources
from turnout.fleet.statistics import Draw, Statistics, drawn, mean_of, presence, statistics

CLIENTS, ROUNDS, SEEDS = 200, 1000, 3  # of a draw, at most


@dataclass(frozen=True)
class Likeness:
    """The statistics of a log, and the mean over seeds of those of each mode."""

    log: Statistics
    blocks: Statistics
    fitted: Statistics
    stretch: int  # rounds of a stretch of `blocks`


def likeness(fleet: Fleet, model: FleetModel) -> Likeness:
    """Draw from a log in both modes, and compare."""
    day = rounds_a_day(fleet) or 1
    clients, rounds = min(fleet.clients, CLIENTS), min(fleet.rounds, ROUNDS)
    length = stretch_length(fleet)
    stretches = Blocks(fleet, Sources(fleet.clients), length)
    dealt = Sources(fleet.clients, weight_M=fleet.asked_M)

    def mean(draw_with: dict[int, Draw]) -> Statistics:
        return mean_of([statistics(drawn(draw, clients, rounds), day) for draw in draw_with.values()])

    def from_blocks(seed: int) -> Draw:
        return lambda client_C, t: stretches.fraction(client_C, t, seed)

    def from_model(seed: int) -> Draw:
        def draw(client_C: torch.Tensor, t: int) -> torch.Tensor:
            return model.fraction(client_C, t, seed, dealt)

        return draw

    return Likeness(
        log=statistics(presence(fleet), day),
        blocks=mean({seed: from_blocks(seed) for seed in range(SEEDS)}),
        fitted=mean({seed: from_model(seed) for seed in range(SEEDS)}),
        stretch=length,
    )
