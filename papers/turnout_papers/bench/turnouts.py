"""Five kinds of turnout, in each of which half of the work is done on average.

Clients are in two groups by what they hold (data.py, `Halves`); all kinds but the first and the trend are tied to them.

Shape letters: C clients of the cohort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import uniform
from turnout.world.participation import Dropout, GroupDropout, Participation, PresenceModel

DAY = 24  # rounds


@dataclass(frozen=True)
class Daily(PresenceModel):
    """A rhythm of day and night: up with probability (1 + depth · cos) / 2, the groups half a day apart.

    depth    1: nobody of a group is up at its midnight, everybody at noon
    when_up  the participation of those present; None: they finish all of the work
    """

    depth: float = 0.9
    when_up: Participation | None = None

    def up(self, client_C: Tensor, t: int, seed: int, groups: Tensor | None) -> Tensor:
        hour_C = t / DAY + of_group(client_C, groups) / 2
        chance_C = (1 + self.depth * torch.cos(2 * math.pi * hour_C)) / 2
        return drawn(seed, "daily", t, client_C) < chance_C


@dataclass(frozen=True)
class Trend(PresenceModel):
    """Fewer and fewer clients: the probability of being up falls in equal steps.

    first, last  in the first round, and from round `over` on
    over         rounds
    when_up      the participation of those present; None: they finish all of the work
    """

    first: float = 0.9
    last: float = 0.1
    over: int = 60
    when_up: Participation | None = None

    def up(self, client_C: Tensor, t: int, seed: int, groups: Tensor | None) -> Tensor:
        chance = self.first + (self.last - self.first) * min(1.0, t / max(1, self.over - 1))
        return drawn(seed, "trend", t, client_C) < chance


@dataclass(frozen=True)
class DeadlineTiers:
    """What a deadline leaves of the work: devices of the first group are slow, of the second fast; times vary.

    slow, fast  the share of the work that a device of the group finishes by the deadline in its median round
    spread      standard deviation of the logarithm of a round's time
    """

    slow: float = 0.25
    fast: float = 1.2
    spread: float = 0.5

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        first_C = of_group(client_C, groups) == 0
        median_C = torch.where(first_C, self.slow, self.fast)
        normal_C = torch.erfinv(2 * drawn(seed, "tiers", t, client_C).clamp(1e-6, 1 - 1e-6) - 1) * math.sqrt(2)
        done_C = (median_C * torch.exp(self.spread * normal_C)).clamp(max=1.0)
        return (done_C * full_work).floor().div(full_work).double()


def of_group(client_C: Tensor, groups: Tensor | None) -> Tensor:
    if groups is None:
        raise UserError("this turnout is tied to two groups of clients, and the data has none: wrap it in Halves")
    return groups[client_C]


def drawn(seed: int, what: str, t: int, client_C: Tensor) -> Tensor:
    """A uniform number in [0, 1) of each client in a round."""
    return uniform(seed, "bench", what, t, ids=client_C)


def turnouts(rounds: int) -> dict[str, Participation]:
    return {
        "independent": Dropout(0.5),
        "tied to labels": GroupDropout((0.85, 0.15)),
        "daily": Daily(),
        "trend": Trend(over=rounds),
        "deadline": DeadlineTiers(),
    }
