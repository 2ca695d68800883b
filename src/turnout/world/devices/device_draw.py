"""The promise of devices, one draw of them, what all kinds share (noise, slow-downs), and the times of a round.

A client downloads, trains and uploads, one after the other:

    download  latency + bytes down / down rate
    train     samples of the steps taken / samples a second
    upload    latency + bytes up / up rate

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


def normal(seed: int, *address: int | str, ids: Tensor) -> Tensor:
    """One standard normal number per id, by address.

    >>> z = normal(0, "speed", ids=torch.arange(10_000))
    >>> bool(z.mean().abs() < 0.03), bool((z.std() - 1).abs() < 0.03)
    (True, True)
    """
    return torch.special.ndtri(uniform(seed, *address, ids=ids).clamp(1e-12, 1 - 1e-12))


@dataclass(frozen=True, kw_only=True)
class DeviceConditions:
    """Settings of all kinds of devices, drawn anew for each client and round.

    noise        deviation of the logarithm of each speed: 0.2 is about 20 % either way
    slow_chance  how often a device is slow for a round (hot, busy, saving its battery)
    slow_factor  how many times slower it computes then
    """

    noise: float = 0.0
    slow_chance: float = 0.0
    slow_factor: float = 4.0

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


@dataclass(frozen=True)
class Passes:
    """How mini-batches make passes over a client's samples; the last batch of a pass may be smaller.

    samples_C  samples of a whole pass
    steps_C    mini-batches of a whole pass
    batch      the batch size
    """

    samples_C: Tensor
    steps_C: Tensor
    batch: int

    @classmethod
    def of(cls, examples_C: Tensor, batch: int, drop_single: bool) -> Passes:
        """Of clients with so many samples; `drop_single`: without a last batch of one, as batch statistics need two."""
        left_out_C = (examples_C % batch == 1) & drop_single & (batch > 1)
        samples_C = examples_C - left_out_C.long()
        return cls(samples_C, (samples_C + batch - 1) // batch, batch)

    def samples_of(self, steps_C: Tensor) -> Tensor:
        """The samples of the first so many steps.

        >>> Passes.of(torch.tensor([45]), 20, False).samples_of(torch.tensor([2])), 45 + 20
        (tensor([40]), 65)
        """
        per_pass_C = self.steps_C.clamp(min=1)
        whole_C, rest_C = steps_C // per_pass_C, steps_C % per_pass_C
        return whole_C * self.samples_C + rest_C * self.batch

    def steps_for(self, samples_C: Tensor) -> Tensor:
        """The whole steps for which so many samples (a real number, perhaps negative) are enough.

        >>> Passes.of(torch.tensor([45]), 20, False).steps_for(torch.tensor([44.9]))
        tensor([2])
        """
        held_C = self.samples_C.clamp(min=1)
        whole_C = ((samples_C + 1e-9) / held_C).floor().clamp(min=0)
        rest_C = ((samples_C + 1e-9 - whole_C * held_C) / self.batch).floor().clamp(min=0)
        steps_C = whole_C * self.steps_C + torch.minimum(rest_C, (self.steps_C - 1).clamp(min=0))
        return steps_C.long()


@dataclass(frozen=True)
class Pace:
    """The times of some clients in one round.

    download_C, upload_C  seconds of each transfer
    rate_C                samples a second
    passes                how batches make passes over their samples
    """

    download_C: Tensor
    upload_C: Tensor
    rate_C: Tensor
    passes: Passes

    @classmethod
    def of(cls, draw: DeviceDraw, down_C: Tensor, up_C: Tensor, flops: float, passes: Passes) -> Pace:
        """The pace of devices with so many bytes to download and to send, and operations for training on one sample."""
        return cls(
            download_C=draw.latency_C + down_C / draw.down_C,
            upload_C=draw.latency_C + up_C / draw.up_C,
            rate_C=draw.samples_per_second(flops),
            passes=passes,
        )

    def train_C(self, steps_C: Tensor) -> Tensor:
        return self.passes.samples_of(steps_C) / self.rate_C

    def steps_by(self, limit_C: Tensor) -> Tensor:
        """The most steps after which a reply still arrives within so many seconds."""
        left_C = (limit_C - self.download_C - self.upload_C).clamp(max=1e15 / self.rate_C)
        return self.passes.steps_for(left_C * self.rate_C)
