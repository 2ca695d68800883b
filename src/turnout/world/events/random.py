"""Joins, leaves and returns at random, from rates: an entry of `World.events`.

Events are drawn before the first round, with an address for each round, so they do not depend on how many rounds
follow. The cost grows with the clients that move, not with the population.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from turnout.errors import UserError
from turnout.rng import draw, rng
from turnout.world.events.base import Event, Join, Leave, PlannedEvents, Setting

SUMMED_RATE = 700.0  # for higher rates exp(-rate) underflows, and sums cannot start from it


@dataclass(frozen=True)
class RandomEvents:
    """Joins, leaves and returns at random: how many a round follows Poisson's law with these rates.

    waiting   clients that are not members at first, chosen at random; joins take from them until none is left
    joins, leaves, returns   expected number a round; returns take from those who have left
    first     the first round in which something may happen

    The last member never leaves. What happens in a round does not depend on how many rounds follow.
    """

    joins: float = 0.0
    leaves: float = 0.0
    returns: float = 0.0
    waiting: int = 0
    first: int = 1

    def __post_init__(self) -> None:
        if not all(math.isfinite(rate) for rate in (self.joins, self.leaves, self.returns)):
            raise UserError(
                "RandomEvents: joins, leaves and returns are expected numbers a round: write finite numbers"
            )
        if min(self.joins, self.leaves, self.returns) < 0 or self.waiting < 0 or self.first < 0:
            raise UserError("RandomEvents: rates, waiting and first must not be negative")
        if self.joins and not self.waiting:
            raise UserError(
                "RandomEvents: joins need somebody who can join: set waiting to how many are outside at first"
            )

    @property
    def drawn(self) -> bool:
        return True

    def events(self, setting: Setting) -> PlannedEvents:
        free = setting.clients - len(setting.named)
        if self.waiting >= free:
            raise UserError(
                f"RandomEvents(waiting={self.waiting}): of {free} clients at least one must be there at first"
            )
        population = _Population.of(setting, self.waiting)
        found: list[Event] = []
        for t in range(self.first, setting.rounds):
            came, went, back = (self._count(name, t, setting) for name in ("joins", "leaves", "returns"))
            found += population.happen(t, came, went, back)
        return PlannedEvents(tuple(found), population.outside)

    def _count(self, name: str, t: int, setting: Setting) -> int:
        u = float(torch.rand((), generator=rng(setting.seed, "events", name, t), dtype=torch.float64))
        return poisson(u, getattr(self, name), most=setting.clients)


@dataclass
class _Population:
    """Who is a member while events are drawn: the population's size and short lists of those who are not."""

    setting: Setting
    outside: tuple[int, ...]
    waiting: list[int]
    away: list[int] = field(default_factory=list)  # clients that have left
    moved: set[int] = field(default_factory=set)  # clients that are not members now, or that other entries name

    @classmethod
    def of(cls, setting: Setting, waiting: int) -> _Population:
        wanted = waiting + len(setting.named)
        drawn = draw(wanted, setting.clients, 0, setting.seed, "waiting").tolist() if waiting else []
        mixed = torch.randperm(len(drawn), generator=rng(setting.seed, "waiting order")).tolist()
        chosen = [drawn[i] for i in mixed if drawn[i] not in setting.named][:waiting]
        return cls(setting, tuple(sorted(chosen)), chosen, [], set(chosen) | set(setting.named))

    def happen(self, t: int, came: int, went: int, back: int) -> list[Event]:
        """The events of a round with so many joins, leaves and returns, as far as there are clients for them."""
        g = rng(self.setting.seed, "events", "who", t)
        leaving = [c for c in (self._member(g) for _ in range(went)) if c is not None]
        returning = [self.away.pop(_below(len(self.away), g)) for _ in range(min(back, len(self.away)))]
        joining = [self.waiting.pop() for _ in range(min(came, len(self.waiting)))]
        self.moved -= {*joining, *returning}
        self.away += leaving
        return [*(Leave(c, t) for c in leaving), *(Join(c, t) for c in (*joining, *returning))]

    def _member(self, g: torch.Generator) -> int | None:
        """A random member that no other entry names; None if only one is left."""
        if self.setting.clients - len(self.moved) <= 1:
            return None
        while True:
            client = _below(self.setting.clients, g)
            if client not in self.moved:
                self.moved.add(client)
                return client


def _below(n: int, g: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=g))


def poisson(u: float, rate: float, most: int = 2**62) -> int:
    """A Poisson draw by inversion of a uniform u in [0, 1), at most `most`.

    >>> poisson(0.5, 0.0), poisson(0.3, 1.0), poisson(0.5, 1.0), poisson(0.999, 1.0)
    (0, 0, 1, 5)
    >>> poisson(0.5, 800.0), poisson(0.5, 800.0, most=50)
    (800, 50)
    """
    if rate > SUMMED_RATE:
        return _searched(u, rate, most)
    count, chance = 0, math.exp(-rate)
    while u >= chance and chance > 0:
        u -= chance
        count += 1
        chance *= rate / count
    return min(count, most)


def _searched(u: float, rate: float, most: int) -> int:
    """The smallest k with P(N <= k) = Q(k + 1, rate) > u, Q the regularised upper incomplete gamma function."""
    low, high, mean = 0, most, torch.tensor(rate, dtype=torch.float64)
    while low < high:
        middle = (low + high) // 2
        below = torch.special.gammaincc(torch.tensor(middle + 1.0, dtype=torch.float64), mean)
        low, high = (low, middle) if float(below) > u else (middle + 1, high)
    return low


KINDS = {"random-events": RandomEvents}
