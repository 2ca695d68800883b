"""Lossy compressions: sparse messages, ternary (EFL) or with values, and eight bits per entry.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.layout import Slot
from turnout.parts.compression.base import Dense, Sending, dense_bytes
from turnout.parts.compression.codec.byte import Byte, Dither
from turnout.parts.compression.codec.sparse import Ternary, Values
from turnout.parts.compression.error_feedback import Codec, ErrorFeedback
from turnout.rng import key
from turnout.types import Message, State, Tensors

SPARSE = {"keep": "(0, 1]", "scope": ("tensor", "model")}


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
        check_settings(self, **SPARSE, keep_down="(0, 1]")

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


@dataclass(frozen=True)
class LiteralTernary(Dense):
    """Algorithm 1 of paper 001 as printed, which overshoots; only for demonstration.

    Clients send A_k = R_k + D_k and keep R_k = A_k - ST(A_k); the server applies A_G and keeps R_G = A_G - ST(A_G). So
    the residual is added again in every later round. Messages are dense. `keep` and `scope` as for `TopK`.
    """

    keep: float = 0.01
    scope: str = "tensor"

    def __post_init__(self) -> None:
        check_settings(self, **SPARSE)

    def residuals(self, slots: tuple[Slot, ...]) -> Tensors:
        return {"left": torch.zeros(dense_bytes(slots) // 4)}

    def begin(self, slots: tuple[Slot, ...]) -> State:
        return {"left_P": torch.zeros(dense_bytes(slots) // 4)}

    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        left_CP = kept["left"].add_(update_CP)
        message, _ = super().encode(left_CP.clone(), {}, sending)
        Ternary(self.keep, self.scope).write(left_CP, sending.slots)
        return message, {"left": left_CP}

    def broadcast(self, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
        applied_P = state["left_P"] + change_P
        left_P = applied_P.clone()
        Ternary(self.keep, self.scope).write(left_P[None], sending.slots)
        return applied_P, {"left_P": left_P}


KINDS = {"sparse-ternary": SparseTernary, "top-k": TopK, "quantise": Quantise, "literal-ternary": LiteralTernary}
