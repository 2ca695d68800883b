"""Devices that are all alike, or spread by a law.

Shape letters: C clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.rng import uniform
from turnout.world.devices.base import BYTES_OF_MEGABIT, GIGA, DeviceDraw, Weather, check_speeds, normal

LAWS = ("log-normal", "pareto")


@dataclass(frozen=True)
class Alike(Weather):
    """Every device the same: `gflops` while training, or `samples_per_second` of this very model where given.

    The defaults are those of a phone of 2018 (tiers.py). `latency` in seconds, each way; and the settings of `Weather`.
    """

    gflops: float = 4.2
    samples_per_second: float | None = None
    down_mbps: float = 36.0
    up_mbps: float = 11.2
    latency: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        named = {} if self.samples_per_second is None else {"samples_per_second": self.samples_per_second}
        speeds = {"gflops": self.gflops, "down_mbps": self.down_mbps, "up_mbps": self.up_mbps, "latency": self.latency}
        check_speeds("world.devices", **speeds, **named)

    @property
    def tiers(self) -> tuple[str, ...]:
        return ("device",)

    def usual(self, client_C: Tensor) -> DeviceDraw:
        """These devices as the settings have them."""

        def same(value: float) -> Tensor:
            return torch.full((len(client_C),), value, dtype=torch.float64)

        by_samples = self.samples_per_second is not None
        return DeviceDraw(
            compute_C=same(self.gflops * GIGA if self.samples_per_second is None else self.samples_per_second),
            down_C=same(self.down_mbps * BYTES_OF_MEGABIT),
            up_C=same(self.up_mbps * BYTES_OF_MEGABIT),
            latency_C=same(self.latency),
            tier_C=torch.zeros_like(client_C),
            by_samples=by_samples,
        )

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        return self.in_weather(self.usual(client_C), client_C, t, seed)


@dataclass(frozen=True)
class Spread(Alike):
    """Devices that differ by a law; each keeps its own speeds, drawn once for computing and for each link.

    law             "log-normal": the speeds given are medians; "pareto": they are those of the fastest, and the time
                    that things take has a heavy tail
    compute_spread  deviation of the logarithm; or, for "pareto", 1 / α: 0.5 makes one in a hundred ten times slower
    down_spread, up_spread  the same of the links
    tiers           fast, middle and slow: the thirds by the slower of computing and uplink
    and the settings of `Alike`
    """

    law: str = "log-normal"
    compute_spread: float = 0.5
    down_spread: float = 0.5
    up_spread: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.law not in LAWS:
            raise UserError(f"world.devices.law is {self.law!r}: {nearest(self.law, LAWS)}")
        for name in ("compute_spread", "down_spread", "up_spread"):
            if not getattr(self, name) >= 0:
                raise UserError(f"world.devices.{name} is a spread, 0 or more, not {getattr(self, name)}")

    @property
    def tiers(self) -> tuple[str, ...]:
        return ("fast", "middle", "slow")

    def slowness(self, name: str, client_C: Tensor, seed: int) -> Tensor:
        """How many times slower than given each is.

        >>> tail = Spread(law="pareto", up_spread=0.5).slowness("up", torch.arange(100_000), 0)
        >>> round(float((tail > 10).double().mean()), 3), float(tail.min()) >= 1
        (0.01, True)
        """
        spread = float(getattr(self, f"{name}_spread"))
        if self.law == "pareto":
            return (1 - uniform(seed, "device", name, ids=client_C)) ** -spread
        return (spread * normal(seed, "device", name, ids=client_C)).exp()

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        same = self.usual(client_C)
        slow = {name: self.slowness(name, client_C, seed) for name in ("compute", "down", "up")}
        rank_C = torch.stack([uniform(seed, "device", name, ids=client_C) for name in ("compute", "up")]).amax(0)
        draw = DeviceDraw(
            compute_C=same.compute_C / slow["compute"],
            down_C=same.down_C / slow["down"],
            up_C=same.up_C / slow["up"],
            latency_C=same.latency_C,
            tier_C=(rank_C**2 * 3).long().clamp(max=2),  # the larger of two uniform numbers is below x in x² of cases
            by_samples=same.by_samples,
        )
        return self.in_weather(draw, client_C, t, seed)


KINDS = {"alike": Alike, "spread": Spread}
