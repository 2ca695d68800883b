"""What compressions that lose something have in common: error feedback on both sides, and messages as real bytes.

    client   A_k = R_k + (E / s_k) D_k;   M_k = C(A_k);   R_k <- A_k - M_k
    server   A_G = R_G + η_g Σ a_k M_k;   M_G = C(A_G);   R_G <- A_G - M_G;   w <- w + M_G

E/s is in the update before it comes here (`algorithm.scale_at`), η_g in the change (`algorithm.server`). Residuals are
what the decoder makes of the bytes, taken off what went in; everybody, the server included, moves by what was sent.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.exchange import Messages
from turnout.layout import Slot
from turnout.parts.compression.base import Sending, dense_bytes
from turnout.parts.compression.broadcast_log import NEVER, BroadcastLog
from turnout.parts.compression.codec.bits import Coded
from turnout.types import BYTE, Message, State, Tensors

DIRECTIONS = ("both", "up")


class Codec(Protocol):
    """Rows of numbers as bytes, and back."""

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Coded:
        """Encode rows; `x_CP` becomes what is left out of the messages: x less what `read` makes of them."""
        ...

    def read(self, coded: Coded, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Messages as rows again; one that cannot be right raises UserError."""
        ...

    def longest(self, slots: tuple[Slot, ...]) -> int:
        """No message is longer than so many bytes."""
        ...


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(ABC):
    """A compression made of a codec for each direction.

    feedback        what is left out is kept and goes with the next message
    directions      "both", or "up": the server sends the model as it is
    residual_decay  what a client's residual is multiplied by for each round that it was away
    reset_after     a client that was away for so many rounds begins without a residual
    """

    feedback: bool = True
    directions: str = "both"
    residual_decay: float = 1.0
    reset_after: int | None = None

    def __post_init__(self) -> None:
        if self.directions not in DIRECTIONS:
            found = nearest(self.directions, DIRECTIONS)
            raise UserError(f"algorithm.compression.directions is {self.directions!r}: {found}")
        if not 0 <= self.residual_decay <= 1:
            raise UserError(f"algorithm.compression.residual_decay is in [0, 1], not {self.residual_decay}")
        if self.reset_after is not None and self.reset_after < 1:
            raise UserError(f"algorithm.compression.reset_after is at least 1 round, not {self.reset_after}")

    @abstractmethod
    def codec(self, way: str, sending: Sending) -> Codec:
        """How messages go "up" or "down" in these circumstances."""

    def residuals(self, slots: tuple[Slot, ...]) -> Tensors:
        """What is left out so far, and the round of the last message: the model is held as of its beginning."""
        rows = {"round": torch.tensor(NEVER)}
        return rows | ({"left": torch.zeros(_width(slots))} if self.feedback else {})

    def begin(self, slots: tuple[Slot, ...]) -> State:
        return BroadcastLog.begin(_width(slots) if self.feedback else 0).to_state() if self.directions == "both" else {}

    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        left_CP, round_C = update_CP, kept["round"]
        if self.feedback:
            left_CP = self._aged(kept["left"], sending.t - 1 - round_C).add_(update_CP)
        coded = self.codec("up", sending).write(left_CP, sending.slots)
        message = Message({BYTE: coded.byte_CB} | self.held(kept), coded.length_C, coded.decoded_CP)
        now = {"round": torch.full_like(round_C, sending.t)}
        return message, now | ({"left": left_CP} if self.feedback else {})

    def _aged(self, left_CP: Tensor, away_C: Tensor) -> Tensor:
        """Residuals of clients that were away for some rounds."""
        if self.residual_decay != 1:
            left_CP.mul_((self.residual_decay ** away_C.clamp(min=0).to(left_CP))[:, None])
        if self.reset_after is not None:
            left_CP.masked_fill_((away_C >= self.reset_after)[:, None], 0)
        return left_CP

    def longest(self, sending: Sending) -> int:
        return self.codec("up", sending).longest(sending.slots)

    def decode(self, message: Message, sending: Sending, like_P: Tensor) -> Tensor:
        if message.decoded is not None:
            return message.decoded.to(like_P)
        coded = Coded(message.tensors[BYTE].to(like_P.device), message.bytes_C)
        return self.codec("up", sending).read(coded, sending.slots, like_P.dtype)

    def held(self, kept: Tensors) -> Tensors:
        return {"since": kept["round"]}

    def catch_up(self, state: State, held: Tensors, sending: Sending) -> Tensor:
        dense = dense_bytes(sending.slots)
        if self.directions == "up":
            return torch.full((len(sending.client_C),), dense)
        return BroadcastLog.from_state(state).owed(held["since"].cpu(), dense)

    def broadcast(self, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
        if self.directions == "up":
            return change_P, state
        log = BroadcastLog.from_state(state)
        left_P = log.left_P + change_P if self.feedback else change_P.clone()
        codec = self.codec("down", sending)
        coded = codec.write(left_P[None], sending.slots)
        applied_CP = coded.decoded_CP
        applied_CP = codec.read(coded, sending.slots, change_P.dtype) if applied_CP is None else applied_CP
        applied_P = applied_CP[0]
        message_B = coded.byte_CB[0, : int(coded.length_C[0])]
        left_P = left_P if self.feedback else log.left_P
        return applied_P, log.sent(message_B, sending.t, left_P, dense_bytes(sending.slots)).to_state()

    def missed(self, state: State, since: int, slots: tuple[Slot, ...]) -> Messages | None:
        if self.directions == "up":
            return None
        return BroadcastLog.from_state(state).missed(since, dense_bytes(slots))

    def received(self, held_P: Tensor, messages: Messages, sending: Sending) -> Tensor:
        for t, message in messages:
            codec = self.codec("down", replace(sending, t=t))
            coded = Coded.of([message], codec.longest(sending.slots))
            held_P = held_P + codec.read(coded, sending.slots, held_P.dtype)[0]
        return held_P

    def forget(self, state: State, client_I: Tensor) -> State:
        return state  # what a client holds is in its own rows, which go with it


def _width(slots: tuple[Slot, ...]) -> int:
    return sum(slot.size for slot in slots)
