"""Sparse messages: ternary (EFL), with values, and Algorithm 1 of EFL as printed.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.layout import Slot
from turnout.parts.compression.base import Dense, Sending, dense_bytes
from turnout.parts.compression.codec.pieces import check_keep
from turnout.parts.compression.codec.ternary import Ternary, Values
from turnout.parts.compression.error_feedback import Codec, ErrorFeedback
from turnout.types import Message, State, Tensors


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
        check_keep("algorithm.compression.keep", self.keep, self.scope)
        check_keep("algorithm.compression.keep_down", self._share("down"), self.scope)

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
class LiteralTernary(Dense):
    """Algorithm 1 of paper 001 as printed, which overshoots; only for demonstration.

    Clients send A_k = R_k + D_k and keep R_k = A_k - ST(A_k); the server applies A_G and keeps R_G = A_G - ST(A_G). So
    the residual is added again in every later round. Messages are dense. `keep` and `scope` as for `TopK`.
    """

    keep: float = 0.01
    scope: str = "tensor"

    def __post_init__(self) -> None:
        check_keep("algorithm.compression.keep", self.keep, self.scope)

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


KINDS = {"sparse-ternary": SparseTernary, "top-k": TopK, "literal-ternary": LiteralTernary}
