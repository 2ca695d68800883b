"""Bytes, steps and rates as seconds, of a client's download, mini-batches and upload, one after the other.

    download  latency + bytes down / down rate
    train     samples of the steps taken / samples a second
    upload    latency + bytes up / up rate

Shape letters: C clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.world.devices.device_draw import DeviceDraw


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
