"""How updates travel: encoded by the client, decoded by the server, and the other way round; exact bytes.

Shape letters: C replies, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnout.types import State, Tensors


@dataclass(frozen=True)
class Sent:
    """What arrived at the other side, what the sender kept back, and what it cost."""

    arrived: Tensor  # [C, P] up, [P] down
    kept: Tensors  # the sender's residuals for its next message
    bytes: Tensor  # [C] up; down: a 0-dimensional tensor


class Compression(Protocol):
    """Clients' residuals are rows of the client store; the server's are in its state."""

    def residuals(self, width: int) -> Tensors:
        """One client's residual state before its first message."""
        ...

    def begin(self, width: int) -> State:
        """The server's state before the first round."""
        ...

    def up(self, update_CP: Tensor, kept: Tensors) -> Sent:
        """Encode and decode the clients' updates (may write into `update_CP`)."""
        ...

    def down(self, change_P: Tensor, state: State) -> tuple[Sent, State]:
        """Encode and decode the server's change: what the clients, and the server itself, then apply."""
        ...

    def download(self, client_C: Tensor, width: int, state: State) -> Tensor:
        """Bytes each client must fetch to hold the current shared parameters."""
        ...


@dataclass(frozen=True)
class Dense:
    """No compression: four bytes a parameter, both ways."""

    def residuals(self, width: int) -> Tensors:
        return {}

    def begin(self, width: int) -> State:
        return {}

    def up(self, update_CP: Tensor, kept: Tensors) -> Sent:
        return Sent(update_CP, {}, torch.full((update_CP.shape[0],), 4 * update_CP.shape[1]))

    def down(self, change_P: Tensor, state: State) -> tuple[Sent, State]:
        return Sent(change_P, {}, torch.tensor(4 * change_P.numel())), state

    def download(self, client_C: Tensor, width: int, state: State) -> Tensor:
        return torch.full((len(client_C),), 4 * width)
