"""Charging hours: devices that are on at night only, by the hour of the simulated day.

Shape letters: C clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.rng import uniform

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True)
class ChargingHours:
    """Each day a device is on a charger from about `start` o'clock for `hours` hours; the run begins at `begin`.

    apart  by how many hours the first and the last device differ (time zones and habits), evenly; each keeps its own
    """

    start: float = 22.0
    hours: float = 8.0
    apart: float = 2.0
    begin: float = 22.0

    def __post_init__(self) -> None:
        if not 0 < self.hours <= 24 or not self.apart >= 0:
            raise UserError(
                f"world.devices.charging is for hours={self.hours} of a day, {self.apart} apart: give hours above 0 "
                "and at most 24, and apart of 0 or more"
            )

    def on_for(self, client_C: Tensor, now: float, seed: int) -> Tensor:
        """The seconds each is still on; 0 where it is off.

        >>> night = ChargingHours(start=22, hours=8, apart=0, begin=21)
        >>> [float(night.on_for(torch.tensor([0]), hour * HOUR, 0)[0] / HOUR) for hour in (0, 1, 3, 9)]
        [0.0, 8.0, 6.0, 0.0]
        """
        if self.hours == 24:
            return torch.full((len(client_C),), torch.inf, dtype=torch.float64)
        shift_C = (uniform(seed, "charging", ids=client_C) - 0.5) * self.apart * HOUR
        since_C = (self.begin * HOUR + now - self.start * HOUR - shift_C) % DAY
        return (self.hours * HOUR - since_C).clamp(min=0)
