"""How updates are sent: encoded by clients, decoded and broadcast by the server, with exact bytes.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from turnout.exchange import Messages
from turnout.layout import Slot
from turnout.types import Message, State, Tensors


@dataclass(frozen=True)
class Sending:
    """The circumstances of a message.

    t         round
    seed      of the experiment
    client_C  the clients of the rows
    slots     the shared parameters, in the order of the columns
    """

    t: int
    seed: int
    client_C: Tensor
    slots: tuple[Slot, ...]


def dense_bytes(slots: tuple[Slot, ...]) -> int:
    """Bytes of the shared parameters uncompressed: four per float, in any precision."""
    return 4 * sum(slot.size for slot in slots)


class Compression(Protocol):
    """Encodes updates both ways. Clients' residuals are rows of the client store; the server's are in its state."""

    # Residuals that clients report: they identify the model a client holds, for `catch_up`. Name -> name in a message.
    reported: ClassVar[Mapping[str, str]] = {}

    def residuals(self, slots: tuple[Slot, ...]) -> Tensors:
        """One client's residuals before its first message."""
        return {}

    def begin(self, slots: tuple[Slot, ...]) -> State:
        """The server's state before the first round."""
        return {}

    @abstractmethod
    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        """The clients' messages and their residuals for the next one (may write into `update_CP` and `kept`)."""

    @abstractmethod
    def longest(self, sending: Sending) -> int:
        """Most bytes of a client's message; a device plans with it before it has trained."""

    @abstractmethod
    def decode(self, message: Message, sending: Sending, like_P: Tensor) -> Tensor:
        """The decoded updates [C, P], in the server's precision."""

    def held(self, kept: Tensors) -> Tensors:
        """The reported residuals as messages contain them."""
        return {name: kept[residual] for residual, name in self.reported.items()}

    @abstractmethod
    def catch_up(self, state: State, held: Tensors, sending: Sending) -> Tensor:
        """Bytes each client had to download at the start of the round to hold the current shared parameters."""

    def broadcast(self, change_P: Tensor, state: State, sending: Sending) -> tuple[Tensor, State]:
        """The change as all clients and the server apply it."""
        return change_P, state

    def missed(self, state: State, since: int, slots: tuple[Slot, ...]) -> Messages | None:
        """Encoded changes, in order, for a client that holds the shared parameters of the beginning of round `since`;
        None: it needs the parameters themselves."""
        return None

    def received(self, held_P: Tensor, messages: Messages, sending: Sending) -> Tensor:
        """The shared parameters after such messages, equal to the server's to the bit."""
        return held_P


@dataclass(frozen=True)
class Dense(Compression):
    """No compression: four bytes per parameter, both ways."""

    def encode(self, update_CP: Tensor, kept: Tensors, sending: Sending) -> tuple[Message, Tensors]:
        return Message({"update": update_CP}, torch.full((len(update_CP),), 4 * update_CP.shape[1])), {}

    def longest(self, sending: Sending) -> int:
        return dense_bytes(sending.slots)

    def decode(self, message: Message, sending: Sending, like_P: Tensor) -> Tensor:
        return message.tensors["update"]

    def catch_up(self, state: State, held: Tensors, sending: Sending) -> Tensor:
        return torch.full((len(sending.client_C),), dense_bytes(sending.slots))


KINDS = {"dense": Dense, "none": Dense}
