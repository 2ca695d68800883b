"""Lossy compressions: sparse messages, ternary (EFL) or with values, and eight bits per entry.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from turnout.errors import check_settings
from turnout.parts.compression.base import Sending
from turnout.parts.compression.codec.byte import Byte, Dither
from turnout.parts.compression.codec.sparse import Ternary, Values
from turnout.parts.compression.error_feedback import Codec, ErrorFeedback
from turnout.rng import key


@dataclass(frozen=True)
class TopK(ErrorFeedback):
    """The largest entries of each tensor with their values; the residual is added to the next message.

    keep       share of the entries that is sent up
    keep_down  share that is sent down; None: `keep`
    scope      the largest of each "tensor", or of the whole "model"
    and the settings of `ErrorFeedback`
    """

    keep: float = 0.01
    keep_down: float | None = None
    scope: str = "tensor"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, keep="(0, 1]", keep_down="(0, 1]", scope=("tensor", "model"))

    def _share(self, way: str) -> float:
        return self.keep if way == "up" or self.keep_down is None else self.keep_down

    def codec(self, way: str, sending: Sending) -> Codec:
        return Values(self._share(way), self.scope)


@dataclass(frozen=True)
class SparseTernary(TopK):
    """ST of EFL (paper 001) both ways: the signs of the largest entries of each tensor, and their mean size; the
    residual is added to the next message. Settings as for `TopK`.
    """

    def codec(self, way: str, sending: Sending) -> Codec:
        return Ternary(self._share(way), self.scope)


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
        check_settings(self, rounding=("stochastic", "nearest"))

    def codec(self, way: str, sending: Sending) -> Codec:
        if self.rounding == "nearest":
            return Byte()
        client_C = sending.client_C if way == "up" else torch.zeros(1, dtype=torch.int64)
        return Byte(Dither(key(sending.seed, "dither", way, sending.t), client_C))


KINDS = {"sparse-ternary": SparseTernary, "top-k": TopK, "quantise": Quantise}
