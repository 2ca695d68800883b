"""The promise of devices, what one draw of them is, and what all kinds share: noise, slow-downs, charging hours.

Shape letters: C clients of the cohort, I ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import uniform
from turnout.world.devices.charging import ChargingHours

BYTES_OF_MEGABIT = 125_000  # Mbit/s are how links are sold; bytes are what is counted here
GIGA = 1e9


@dataclass(frozen=True)
class DeviceDraw:
    """The devices of some clients in one round.

    compute_C  floating-point operations a second while training; samples a second where `by_samples`
    down_C     bytes a second to the device, and
    up_C       from it
    latency_C  seconds before a transfer begins, each way
    tier_C     the place of each one's tier in `Devices.tiers`
    """

    compute_C: Tensor
    down_C: Tensor
    up_C: Tensor
    latency_C: Tensor
    tier_C: Tensor
    by_samples: bool = False

    def samples_per_second(self, flops: float) -> Tensor:
        """How many samples each trains on in a second, if one takes so many operations."""
        return self.compute_C if self.by_samples else self.compute_C / flops


class Devices(Protocol):
    """What each client's device is like. Draws are addressed: they depend on client, round and seed alone."""

    @property
    def tiers(self) -> tuple[str, ...]:
        """What the tiers are called; one name where there are none."""
        ...

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        """The devices of these clients in round t."""
        ...

    def on_for(self, client_C: Tensor, now: float, seed: int) -> Tensor:
        """How many seconds each will still be on, from `now` seconds after the run began: 0 is off, inf for ever."""
        ...


def normal(seed: int, *address: int | str, ids: Tensor) -> Tensor:
    """One standard normal number per id, by address.

    >>> z = normal(0, "speed", ids=torch.arange(10_000))
    >>> bool(z.mean().abs() < 0.03), bool((z.std() - 1).abs() < 0.03)
    (True, True)
    """
    return torch.special.ndtri(uniform(seed, *address, ids=ids).clamp(1e-12, 1 - 1e-12))


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What all kinds of devices have in common, drawn anew for each client and round.

    noise        deviation of the logarithm of each speed: 0.2 is about 20 % either way
    slow_chance  how often a device is slow for a round (hot, busy, saving its battery), and
    slow_factor  how many times slower it computes then
    charging     when devices are on; None: always, as far as `world.participation` lets them
    """

    noise: float = 0.0
    slow_chance: float = 0.0
    slow_factor: float = 4.0
    charging: ChargingHours | None = None

    def __post_init__(self) -> None:
        if not self.noise >= 0:
            raise UserError(f"world.devices.noise is a deviation, 0 or more, not {self.noise}")
        if not 0 <= self.slow_chance <= 1:
            raise UserError(f"world.devices.slow_chance is a share of the rounds, 0 to 1, not {self.slow_chance}")
        if not self.slow_factor >= 1:
            raise UserError(f"world.devices.slow_factor is how many times slower, 1 or more, not {self.slow_factor}")

    def in_weather(self, draw: DeviceDraw, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        """The same devices on the day: every speed with its noise, computing slowed down where it is."""
        if self.noise:
            rates = {
                name: getattr(draw, name) * (self.noise * normal(seed, "weather", name, t, ids=client_C)).exp()
                for name in ("compute_C", "down_C", "up_C")
            }
            draw = replace(draw, **rates)
        if self.slow_chance:
            slow_C = uniform(seed, "slow", t, ids=client_C) < self.slow_chance
            draw = replace(draw, compute_C=torch.where(slow_C, draw.compute_C / self.slow_factor, draw.compute_C))
        return draw

    def on_for(self, client_C: Tensor, now: float, seed: int) -> Tensor:
        if self.charging is None:
            return torch.full((len(client_C),), torch.inf, dtype=torch.float64)
        return self.charging.on_for(client_C, now, seed)


def check_speeds(where: str, **speeds: float) -> None:
    """Speeds are above 0, a latency may be 0."""
    for name, value in speeds.items():
        lowest_is_fine = name == "latency" and value == 0
        if not (value > 0 or lowest_is_fine) or value == float("inf"):
            raise UserError(f"{where}.{name} is {value}: give a number above 0")
