"""How updates travel: encoded by the client and decoded by the server, and what the server broadcasts; exact bytes.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnout.exchange import Messages
from turnout.layout import Slot
from turnout.types import Message, State, Tensors


@dataclass(frozen=True)
class Sending:
    """What a codec may need to know of a message: the round, whose rows these are, and the tensor of each column."""

    t: int
    seed: int
    client_C: Tensor
    slots: tuple[Slot, ...]  # the shared parameters, in the order of the columns


def dense_bytes(slots: tuple[Slot, ...]) -> int:
    """What the shared parameters take as they are: floats travel as four bytes, whatever they are computed in."""
    return 4 * sum(slot.size for slot in slots)


class Compression(Protocol):
    """Clients' residuals are rows of the client store; the server's are in its state."""

    def residuals(self, slots: tuple[Slot, ...]) -> Tensors:
        """What one client keeps back before its first message."""
        ...

    def begin(self, slots: tuple[Slot, ...]) -> State:
        """The server's state before the first round."""
        ...

    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        """The clients' messages and what they keep back for the next one (may write into `update_CP` and `kept`)."""
        ...

    def longest(self, sending: Sending) -> int:
        """No client's message is longer than so many bytes: what a device reckons with before it has trained."""
        ...

    def decode(self, message: Message, sending: Sending, like_P: Tensor) -> Tensor:
        """The updates as the server has them [C, P], in its precision."""
        ...

    def held(self, kept: Tensors) -> Tensors:
        """What clients say of the model they hold, for `catch_up`: it is in their messages too."""
        ...

    def catch_up(self, state: State, held: Tensors, sending: Sending) -> Tensor:
        """Bytes each client had to fetch, at the start of the round, to hold the shared parameters of that moment."""
        ...

    def broadcast(self, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
        """The change as everybody will apply it, the server included."""
        ...

    def missed(self, state: State, since: int, slots: tuple[Slot, ...]) -> Messages | None:
        """What a client that holds the shared parameters of the beginning of round `since` has to be sent: encoded
        changes in order; None: the parameters themselves."""
        ...

    def received(self, held_P: Tensor, messages: Messages, sending: Sending) -> Tensor:
        """The shared parameters after such messages, to the bit those of the server."""
        ...

    def forget(self, state: State, client_I: Tensor) -> State:
        """Some clients have left for good: if one comes back, it knows nothing (a dense download)."""
        ...


@dataclass(frozen=True)
class Dense:
    """No compression: four bytes a parameter, both ways."""

    def residuals(self, slots: tuple[Slot, ...]) -> Tensors:
        return {}

    def begin(self, slots: tuple[Slot, ...]) -> State:
        return {}

    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        return Message({"update": update_CP}, torch.full((len(update_CP),), 4 * update_CP.shape[1])), {}

    def longest(self, sending: Sending) -> int:
        return dense_bytes(sending.slots)

    def decode(self, message: Message, sending: Sending, like_P: Tensor) -> Tensor:
        return message.tensors["update"]

    def held(self, kept: Tensors) -> Tensors:
        return {}

    def catch_up(self, state: State, held: Tensors, sending: Sending) -> Tensor:
        return torch.full((len(sending.client_C),), dense_bytes(sending.slots))

    def broadcast(self, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
        return change_P, state

    def missed(self, state: State, since: int, slots: tuple[Slot, ...]) -> Messages | None:
        return None

    def received(self, held_P: Tensor, messages: Messages, sending: Sending) -> Tensor:
        return held_P

    def forget(self, state: State, client_I: Tensor) -> State:
        return state


KINDS = {"dense": Dense, "none": Dense}
