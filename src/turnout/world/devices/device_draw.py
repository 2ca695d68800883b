"""The promise of devices, one draw of them, and what all kinds share: noise, slow-downs, charging hours.

Shape letters: C clients of the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import uniform

BYTES_OF_MEGABIT = 125_000  # links are sold in Mbit/s; bytes are counted here
GIGA = 1e9
HOUR = 3600.0


@dataclass(frozen=True)
class DeviceDraw:
    """The devices of some clients in one round.

    compute_C   floating-point operations a second while training; samples a second if `by_samples`
    down_C      bytes a second to the device
    up_C        bytes a second from the device
    latency_C   seconds before a transfer begins, each way
    tier_C      the place of each device's tier in `Devices.tiers`
    by_samples  the unit of `compute_C`
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
        """The names of the tiers; one name if there are none."""
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


@dataclass(frozen=True)
class ChargingHours:
    """Each day a device is on a charger, and so on, for some hours.

    start  the hour of the day at which it is put on the charger, on average
    hours  how long it stays
    apart  by how many hours the first and the last device differ (time zones, habits), evenly; each keeps its own
    begin  the hour of the day at which the run begins
    """

    start: float = 22.0
    hours: float = 8.0
    apart: float = 2.0
    begin: float = 22.0

    def __post_init__(self) -> None:
        if not 0 < self.hours <= 24 or not self.apart >= 0:
            raise UserError(
                f"world.devices.charging has hours={self.hours} and apart={self.apart}: give hours above 0 and at most "
                "24, and apart of 0 or more"
            )

    def on_for(self, client_C: Tensor, now: float, seed: int) -> Tensor:
        """The seconds each is still on; 0 if it is off.

        >>> night = ChargingHours(start=22, hours=8, apart=0, begin=21)
        >>> [float(night.on_for(torch.tensor([0]), hour * HOUR, 0)[0] / HOUR) for hour in (0, 1, 3, 9)]
        [0.0, 8.0, 6.0, 0.0]
        """
        if self.hours == 24:
            return torch.full((len(client_C),), torch.inf, dtype=torch.float64)
        shift_C = (uniform(seed, "charging", ids=client_C) - 0.5) * self.apart * HOUR
        since_C = (self.begin * HOUR + now - self.start * HOUR - shift_C) % (24 * HOUR)
        return (self.hours * HOUR - since_C).clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class DeviceConditions:
    """Settings of all kinds of devices, drawn anew for each client and round.

    noise        deviation of the logarithm of each speed: 0.2 is about 20 % either way
    slow_chance  how often a device is slow for a round (hot, busy, saving its battery)
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

    def vary(self, draw: DeviceDraw, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        """The same devices in round t: every speed with its noise, computing slowed down by chance."""
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
