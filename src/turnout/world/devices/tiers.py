"""Devices that are all alike, that differ by a law, or of several tiers from published figures.

Published are peaks; training a small network in Python reaches a few percent of them (paper 004, Table 2, on Raspberry
Pis: 0.3 to 2.5 GFLOP/s beside a peak of 38), so `EFFICIENCY` is 3 % for every tier. Measure your own.

Shape letters: C clients, N all clients, S tiers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.rng import uniform
from turnout.world.devices.device_draw import BYTES_OF_MEGABIT, GIGA, DeviceConditions, DeviceDraw, normal
from turnout.world.enrolment import Enrolment

LAWS = ("log-normal", "pareto")
EFFICIENCY = 0.03
WAYS = ("draw", "cluster")


@dataclass(frozen=True)
class Alike(DeviceConditions):
    """Every device the same; the defaults are those of a phone of 2018.

    gflops              GFLOP/s while training
    samples_per_second  of this very model, instead of gflops
    down_mbps, up_mbps  Mbit/s of the links
    latency             seconds, each way
    and the settings of `DeviceConditions`
    """

    gflops: float = 4.2
    samples_per_second: float | None = None
    down_mbps: float = 36.0
    up_mbps: float = 11.2
    latency: float = 0.04
    tiers: ClassVar[tuple[str, ...]] = ("device",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gflops", "down_mbps", "up_mbps", "latency", "samples_per_second"):
            value = getattr(self, name)
            if value is not None and (not (value > 0 or (name == "latency" and value == 0)) or value == float("inf")):
                raise UserError(f"world.devices.{name} is {value}: give a number above 0")

    def usual(self, client_C: Tensor) -> DeviceDraw:
        """These devices as the settings have them."""

        def same(value: float) -> Tensor:
            return torch.full((len(client_C),), value, dtype=torch.float64)

        return DeviceDraw(
            compute_C=same(self.gflops * GIGA if self.samples_per_second is None else self.samples_per_second),
            down_C=same(self.down_mbps * BYTES_OF_MEGABIT),
            up_C=same(self.up_mbps * BYTES_OF_MEGABIT),
            latency_C=same(self.latency),
            tier_C=torch.zeros_like(client_C),
            by_samples=self.samples_per_second is not None,
        )

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        return self.vary(self.usual(client_C), client_C, t, seed)


@dataclass(frozen=True)
class SpreadDevices(Alike):
    """Devices that differ by a law; each keeps its own speeds, drawn once for computing and for each link. Their tiers
    are fast, middle and slow: the thirds by the slower of computing and uplink.

    law             "log-normal": the speeds given are medians; "pareto": they are those of the fastest, and times have
                    a heavy tail
    compute_spread  deviation of the logarithm; or, for "pareto", 1 / α: 0.5 makes one in a hundred ten times slower
    down_spread, up_spread  the same of the links
    and the settings of `Alike`
    """

    law: str = "log-normal"
    compute_spread: float = 0.5
    down_spread: float = 0.5
    up_spread: float = 0.5
    tiers: ClassVar[tuple[str, ...]] = ("fast", "middle", "slow")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.law not in LAWS:
            raise UserError(f"world.devices.law is {self.law!r}: {nearest(self.law, LAWS)}")
        for name in ("compute_spread", "down_spread", "up_spread"):
            if not getattr(self, name) >= 0:
                raise UserError(f"world.devices.{name} is a spread, 0 or more, not {getattr(self, name)}")

    def slowness(self, name: str, client_C: Tensor, seed: int) -> Tensor:
        """How many times slower than given each is.

        >>> tail = SpreadDevices(law="pareto", up_spread=0.5).slowness("up", torch.arange(100_000), 0)
        >>> round(float((tail > 10).double().mean()), 3), float(tail.min()) >= 1
        (0.01, True)
        """
        spread = float(getattr(self, f"{name}_spread"))
        if self.law == "pareto":
            return (1 - uniform(seed, "device", name, ids=client_C)) ** -spread
        return (spread * normal(seed, "device", name, ids=client_C)).exp()

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        same = self.usual(client_C)
        rank_C = torch.stack([uniform(seed, "device", name, ids=client_C) for name in ("compute", "up")]).amax(0)
        draw = replace(
            same,
            compute_C=same.compute_C / self.slowness("compute", client_C, seed),
            down_C=same.down_C / self.slowness("down", client_C, seed),
            up_C=same.up_C / self.slowness("up", client_C, seed),
            tier_C=(rank_C**2 * 3).long().clamp(max=2),  # the larger of two uniform numbers is below x in x² of cases
        )
        return self.vary(draw, client_C, t, seed)


@dataclass(frozen=True)
class Tier:
    """A kind of device.

    name                its name in settings
    peak_gflops         GFLOP/s at its peak, in single precision
    down_mbps, up_mbps  Mbit/s of its links
    latency             seconds, each way
    source              where the figures were published
    """

    name: str
    peak_gflops: float
    down_mbps: float
    up_mbps: float
    latency: float
    source: str


_MOBILE = "links: Speedtest Global Index of September 2020, world mean of mobile: 36.0 down, 11.2 up, 40 ms"
_FIXED = "links: Speedtest Global Index of September 2020, world mean of fixed broadband: 85.7 down, 45.7 up, 21 ms"
_VFPBENCH = "vfpbench, all cores, single precision (wlog.flatlib.jp, January 2019)"

TIERS = {
    tier.name: tier
    for tier in (
        Tier("laptop", 200.0, 85.7, 45.7, 0.021,
             f"HPL on an i7-6820HQ: 100 GFLOP/s in double precision (kreier.github.io/benchmark), twice that in "
             f"single; {_FIXED}"),
        Tier("phone-2018", 139.3, 36.0, 11.2, 0.040, f"Snapdragon 845, 139.3 GFLOP/s by {_VFPBENCH}; {_MOBILE}"),
        Tier("phone-2015", 74.0, 36.0, 11.2, 0.040, f"Snapdragon 808, 74.0 GFLOP/s by {_VFPBENCH}; {_MOBILE}"),
        Tier("raspberry-pi-3b", 37.7, 4.3, 3.5, 0.020,
             "four Cortex-A53 cores, 47.1 GFLOP/s at 1.5 GHz by vfpbench, at 1.2 GHz; links: paper 004, Table 2, the "
             "2NN of 199,210 parameters down in 1.5 s and up in 1.8 s; latency assumed"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Tiers(DeviceConditions):
    """A fleet of several tiers; which device a client has is drawn once.

    names     of `turnout.world.devices.tiers.TIERS`: laptop, phone-2018, phone-2015, raspberry-pi-3b
    shares    of the clients that have each tier; equal if none are given
    spread    deviation of the logarithm of each speed among the devices of a tier
    slower    how many times slower than the figures devices compute: small networks reach less of a peak, and so does
              a device that does other things
    by        "draw": at random; "cluster": the data's clusters of clients have one tier each, the first clusters the
              first tier, so that a tier has samples that no other has
    clusters  the cluster of each client; set when the experiment is prepared
    and the settings of `DeviceConditions`
    """

    names: tuple[str, ...] = ("phone-2018", "phone-2015", "raspberry-pi-3b")
    shares: tuple[float, ...] = ()
    spread: float = 0.2
    slower: float = 1.0
    by: str = "draw"
    clusters: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "shares", tuple(self.shares) or (1.0,) * len(self.names))
        for name in self.names:
            if name not in TIERS:
                raise UserError(f"world.devices.names has {name!r}: {nearest(name, TIERS)}")
        if not self.names or len(self.shares) != len(self.names) or not all(share > 0 for share in self.shares):
            raise UserError(
                f"world.devices.shares = {list(self.shares)} of the tiers {', '.join(self.names)}: one share above 0 "
                "for each tier"
            )
        if not self.spread >= 0 or not self.slower > 0:
            raise UserError(
                f"world.devices.spread is a deviation, 0 or more, not {self.spread}, and slower a factor above 0, not "
                f"{self.slower}"
            )
        if self.by not in WAYS:
            raise UserError(f"world.devices.by is {self.by!r}: {nearest(self.by, WAYS)}")

    @property
    def tiers(self) -> tuple[str, ...]:
        return self.names

    def tier_of(self, client_C: Tensor, seed: int) -> Tensor:
        """The tier of each client's device.

        >>> fleet = Tiers(names=("laptop", "phone-2015"), shares=(1, 3))
        >>> round(float(fleet.tier_of(torch.arange(10_000), 0).double().mean()), 2)
        0.75
        """
        share_S = torch.tensor(self.shares, dtype=torch.float64)
        edge_S = share_S.cumsum(0) / share_S.sum()
        place_C = uniform(seed, "tier", ids=client_C)
        if self.by == "cluster":
            if self.clusters is None:
                raise UserError(
                    "world.devices.by = 'cluster', and the data has no clusters of clients: set by = 'draw'"
                )
            cluster_N = torch.tensor(self.clusters)
            place_C = cluster_N[client_C].double() / (int(cluster_N.max()) + 1)
        return torch.searchsorted(edge_S[:-1].contiguous(), place_C, right=True)

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> Tiers:
        """These devices for the clients of some data, which may be in clusters."""
        groups = None if enrolment.groups is None else tuple(enrolment.groups.tolist())
        return replace(self, clusters=groups) if self.by == "cluster" else self

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        tier_C = self.tier_of(client_C, seed)

        def figures(name: str, unit: float, own: bool = True) -> Tensor:
            value_C = torch.tensor([getattr(TIERS[n], name) for n in self.names], dtype=torch.float64)[tier_C] * unit
            return value_C * (self.spread * normal(seed, "device", name, ids=client_C)).exp() if own else value_C

        draw = DeviceDraw(
            compute_C=figures("peak_gflops", EFFICIENCY * GIGA / self.slower),
            down_C=figures("down_mbps", BYTES_OF_MEGABIT),
            up_C=figures("up_mbps", BYTES_OF_MEGABIT),
            latency_C=figures("latency", 1.0, own=False),
            tier_C=tier_C,
        )
        return self.vary(draw, client_C, t, seed)


KINDS = {"alike": Alike, "spread": SpreadDevices, "tiers": Tiers}
