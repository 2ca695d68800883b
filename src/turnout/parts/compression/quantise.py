"""Updates with one byte per entry instead of four."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from turnout.errors import UserError, nearest
from turnout.parts.compression.base import Sending
from turnout.parts.compression.codec.byte import Byte, Dither
from turnout.parts.compression.error_feedback import Codec, ErrorFeedback
from turnout.rng import key

ROUNDINGS = ("stochastic", "nearest")


@dataclass(frozen=True)
class Quantise(ErrorFeedback):
    """Eight bits per entry: whole multiples of 1/127 of the largest entry of its tensor.

    rounding  "stochastic": up or down so that the mean is right (drawn by address, so a run can be repeated); or
              "nearest"
    feedback  add the rounding errors to the next message; stochastic rounding works without, and then clients keep no
              state
    and the other settings of `ErrorFeedback`
    """

    rounding: str = "stochastic"
    feedback: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounding not in ROUNDINGS:
            raise UserError(f"algorithm.compression.rounding is {self.rounding!r}: {nearest(self.rounding, ROUNDINGS)}")

    def codec(self, way: str, sending: Sending) -> Codec:
        if self.rounding == "nearest":
            return Byte()
        client_C = sending.client_C if way == "up" else torch.zeros(1, dtype=torch.int64)
        return Byte(Dither(key(sending.seed, "dither", way, sending.t), client_C))


KINDS = {"quantise": Quantise}
