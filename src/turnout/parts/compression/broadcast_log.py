"""What the server sends when it does not send the whole model: its last messages, in order, and what it kept back.

A client that was away adds the messages it missed one after another, so that it holds the server's weights to the last
bit (their sum would not be that). Where they are as large as the model itself, or not all there any more, it gets the
model. So the log never needs more bytes than the model has.

Shape letters: P shared parameters, B bytes of the log, M messages in it, C clients.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from turnout.types import State

NEVER = -1  # the round of a client that has not downloaded anything yet


@dataclass(frozen=True)
class BroadcastLog:
    """The server's state of a compression.

    left_P    R_G: what was left out of the messages so far (empty without error feedback)
    byte_B    the last messages, one after another, where they were written
    length_M  how long each is, and
    round_M   the round at whose end it was sent
    since     all messages sent at the end of this round or later are in the log
    """

    left_P: Tensor
    byte_B: Tensor
    length_M: Tensor
    round_M: Tensor
    since: int = 0

    @classmethod
    def begin(cls, width: int) -> BroadcastLog:
        none = torch.empty(0, dtype=torch.int64)
        return cls(torch.zeros(width), none.to(torch.uint8), none, none)

    @classmethod
    def from_state(cls, state: State) -> BroadcastLog:
        beside = {name: state[name].cpu() for name in ("length_M", "round_M")}
        return cls(**state | beside)

    def to_state(self) -> State:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def owed(self, round_C: Tensor, dense: int) -> Tensor:
        """Bytes that bring clients up to date that hold the model as of the beginning of round `round_C`.

        >>> log = BroadcastLog(torch.empty(0), torch.empty(0), torch.tensor([30, 40]), torch.tensor([5, 7]), since=5)
        >>> log.owed(torch.tensor([8, 7, 6, 5, 4, -1]), dense=60)
        tensor([ 0, 40, 40, 60, 60, 60])
        """
        missed_CM = self.round_M >= round_C[:, None]
        bytes_C = (missed_CM * self.length_M).sum(1)
        there_C = (round_C >= self.since) & (round_C > NEVER)
        return torch.where(there_C, bytes_C, dense).clamp(max=dense)

    def missed(self, round: int, dense: int) -> list[tuple[int, bytes]] | None:
        """The messages such a client is sent, in order, each with the round it was sent in; None: the model itself."""
        if int(self.owed(torch.tensor([round]), dense)[0]) == dense:
            return None
        messages = self.byte_B.cpu().split(self.length_M.tolist())
        return [(t, m.numpy().tobytes()) for m, t in zip(messages, self.round_M.tolist(), strict=True) if t >= round]

    def sent(self, message_B: Tensor, round: int, left_P: Tensor, dense: int) -> BroadcastLog:
        """One message on; the oldest go where the log would be larger than the model."""
        length_M = torch.cat([self.length_M, torch.tensor([len(message_B)])])
        round_M = torch.cat([self.round_M, torch.tensor([round])])
        from_end_M = length_M.flip(0).cumsum(0).flip(0)
        gone = int((from_end_M > dense).sum())
        byte_B = torch.cat([self.byte_B.to(message_B.device), message_B])
        if gone:
            byte_B = byte_B[int(length_M[:gone].sum()) :].clone()
        since = int(round_M[gone - 1]) + 1 if gone else self.since
        return replace(
            self, left_P=left_P, byte_B=byte_B, length_M=length_M[gone:], round_M=round_M[gone:], since=since
        )
