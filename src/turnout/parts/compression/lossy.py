"""Lossy compressions with error feedback on both sides: sparse ternary messages (EFL), the largest entries, eight bits.

    client   A_k = R_k + (E / s_k) D_k;   M_k = C(A_k);   R_k <- A_k - M_k
    server   A_G = R_G + η_g Σ a_k M_k;   M_G = C(A_G);   R_G <- A_G - M_G;   w <- w + M_G

The update already contains E/s (`algorithm.scale_at`), the change η_g (`algorithm.server`). A residual is the input
less the decoded message; clients and server all apply the decoded message.

Shape letters: C replies, P shared parameters, B bytes of the log, M messages in it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.errors import check_settings
from turnout.exchange import Messages
from turnout.layout import Slot
from turnout.machine.profiling import staged
from turnout.parts.compression.base import Compression, Sending, dense_bytes
from turnout.parts.compression.codec.byte import Byte, Dither
from turnout.parts.compression.codec.messages import message_of
from turnout.parts.compression.codec.sparse import Ternary, Values
from turnout.rng import key
from turnout.types import BYTE, Message, State, Tensors

NEVER = -1  # the round of a client that has not downloaded anything yet


@dataclass(frozen=True)
class BroadcastLog:
    """The server's state of a compression: its last messages, for clients that were away.

    A client that was away adds the messages it missed one after another, so that it holds the server's weights to the
    bit (which their sum would not give). Where these are as large as the model, or not all are kept, it gets the model:
    so the log never needs more bytes than the model.

    left_P    R_G, the residual (empty without error feedback)
    byte_B    the last messages, one after another, on the device where they were written
    length_M  bytes of each
    round_M   the round at whose end each was sent
    since     all messages sent at the end of this round or later are in the log
    """

    left_P: Tensor
    byte_B: Tensor
    length_M: Tensor
    round_M: Tensor
    since: int = 0

    @classmethod
    def begin(cls, width: int) -> BroadcastLog:
        """Without any message."""
        none = torch.empty(0, dtype=torch.int64)
        return cls(torch.zeros(width), none.to(torch.uint8), none, none)

    @classmethod
    def from_state(cls, state: State) -> BroadcastLog:
        """From a checkpoint."""
        return cls(**state | {name: state[name].cpu() for name in ("length_M", "round_M")})

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def owed(self, round_C: Tensor, dense: int) -> Tensor:
        """Bytes that clients need which hold the model of the beginning of round `round_C`.

        >>> log = BroadcastLog(torch.empty(0), torch.empty(0), torch.tensor([30, 40]), torch.tensor([5, 7]), since=5)
        >>> log.owed(torch.tensor([8, 7, 6, 5, 4, -1]), dense=60)
        tensor([ 0, 40, 40, 60, 60, 60])
        """
        bytes_C = ((self.round_M >= round_C[:, None]) * self.length_M).sum(1)
        there_C = (round_C >= self.since) & (round_C > NEVER)
        return torch.where(there_C, bytes_C, dense).clamp(max=dense)

    def missed(self, round: int, dense: int) -> list[tuple[int, bytes]] | None:
        """The messages such a client needs, in order, each with its round; None: the model itself."""
        if int(self.owed(torch.tensor([round]), dense)[0]) == dense:
            return None
        messages = self.byte_B.cpu().split(self.length_M.tolist())
        return [(t, m.numpy().tobytes()) for m, t in zip(messages, self.round_M.tolist(), strict=True) if t >= round]

    def sent(self, message_B: Tensor, round: int, left_P: Tensor, dense: int) -> BroadcastLog:
        """Add a message; the oldest ones are dropped where the log would be larger than the model."""
        length_M = torch.cat([self.length_M, torch.tensor([len(message_B)])])
        round_M = torch.cat([self.round_M, torch.tensor([round])])
        from_end_M = length_M.flip(0).cumsum(0).flip(0)
        gone = int((from_end_M > dense).sum())
        byte_B = torch.cat([self.byte_B.to(message_B.device), message_B])
        if gone:
            byte_B = byte_B[int(length_M[:gone].sum()) :].clone()
        since = int(round_M[gone - 1]) + 1 if gone else self.since
        return BroadcastLog(left_P, byte_B, length_M[gone:], round_M[gone:], since)


class Codec(Protocol):
    """Rows of numbers as bytes, and back."""

    def write(self, x_CP: Tensor, slots: tuple[Slot, ...]) -> Message:
        """Encode rows; `x_CP` becomes the residual, x less the result of `read`."""

    def read(self, message: Message, slots: tuple[Slot, ...], dtype: torch.dtype) -> Tensor:
        """Decode messages to rows; an impossible message raises UserError."""

    def longest(self, slots: tuple[Slot, ...]) -> int:
        """Most bytes of a message."""


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Compression):
    """A compression with a codec for each direction.

    feedback        add the residual of a message to the next one
    directions      "both", or "up": the server sends the model uncompressed
    residual_decay  factor on a client's residual for each round that it was away
    reset_after     a client that was away for this many rounds starts without a residual
    """

    reported: ClassVar[Mapping[str, str]] = {"round": "since"}

    feedback: bool = True
    directions: str = "both"
    residual_decay: float = 1.0
    reset_after: int | None = None

    def __post_init__(self) -> None:
        check_settings(self, directions=("both", "up"), residual_decay="[0, 1]", reset_after="[1, inf)")

    @abstractmethod
    def codec(self, way: str, sending: Sending) -> Codec:
        """The codec of messages "up" or "down"."""

    def residuals(self, slots: tuple[Slot, ...]) -> Tensors:
        """The residual, and the round of the last message: the client holds the model of its beginning."""
        left = {"left": torch.zeros(dense_bytes(slots) // 4)} if self.feedback else {}
        return {"round": torch.tensor(NEVER)} | left

    def begin(self, slots: tuple[Slot, ...]) -> State:
        width = dense_bytes(slots) // 4 if self.feedback else 0
        return BroadcastLog.begin(width).to_state() if self.directions == "both" else {}

    @staged("encode")
    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        left_CP, round_C = update_CP, kept["round"]
        if self.feedback:
            left_CP, away_C = kept["left"], sending.t - 1 - round_C
            if self.residual_decay != 1:
                left_CP.mul_((self.residual_decay ** away_C.clamp(min=0).to(left_CP))[:, None])
            if self.reset_after is not None:
                left_CP.masked_fill_((away_C >= self.reset_after)[:, None], 0)
            left_CP.add_(update_CP)
        message = self.codec("up", sending).write(left_CP, sending.slots)
        message = replace(message, tensors=message.tensors | self.held(kept))
        now = {"round": torch.full_like(round_C, sending.t)}
        return message, now | ({"left": left_CP} if self.feedback else {})

    def longest(self, sending: Sending) -> int:
        return self.codec("up", sending).longest(sending.slots)

    @staged("decode")
    def decode(self, message: Message, sending: Sending, like_P: Tensor) -> Tensor:
        if message.decoded is not None:
            return message.decoded.to(like_P)
        message = replace(message, tensors={BYTE: message.tensors[BYTE].to(like_P.device)})
        return self.codec("up", sending).read(message, sending.slots, like_P.dtype)

    @staged("broadcast")
    def catch_up(self, state: State, held: Tensors, sending: Sending) -> Tensor:
        dense = dense_bytes(sending.slots)
        if self.directions == "up":
            return torch.full((len(sending.client_C),), dense)
        return BroadcastLog.from_state(state).owed(held["since"].cpu(), dense)

    @staged("broadcast")
    def broadcast(self, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
        if self.directions == "up":
            return change_P, state
        log = BroadcastLog.from_state(state)
        left_P = log.left_P + change_P if self.feedback else change_P.clone()
        codec = self.codec("down", sending)
        message = codec.write(left_P[None], sending.slots)
        applied_CP = message.decoded
        applied_CP = codec.read(message, sending.slots, change_P.dtype) if applied_CP is None else applied_CP
        message_B = message.tensors[BYTE][0, : int(message.bytes_C[0])]
        left_P = left_P if self.feedback else log.left_P
        return applied_CP[0], log.sent(message_B, sending.t, left_P, dense_bytes(sending.slots)).to_state()

    def missed(self, state: State, since: int, slots: tuple[Slot, ...]) -> Messages | None:
        return BroadcastLog.from_state(state).missed(since, dense_bytes(slots)) if self.directions == "both" else None

    def received(self, held_P: Tensor, messages: Messages, sending: Sending) -> Tensor:
        for t, row in messages:
            codec = self.codec("down", replace(sending, t=t))
            message = message_of([row], codec.longest(sending.slots))
            held_P = held_P + codec.read(message, sending.slots, held_P.dtype)[0]
        return held_P


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
