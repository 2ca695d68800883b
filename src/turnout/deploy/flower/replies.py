"""Replies to work, read at the border (runtimes/border.py) by the pattern of what a reply of this client must be like.

Shape letters: C clients of the cohort.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.data.description import Description
from turnout.deploy.flower.enrolled import Client, Enrolled
from turnout.deploy.flower.mailbox import Heard
from turnout.deploy.flower.messages import REPLY
from turnout.deploy.flower.template import template
from turnout.exchange import Download
from turnout.parts.compression.base import Sending
from turnout.parts.local import turn_out
from turnout.runtimes import border
from turnout.runtimes.schema import Refused, Whole
from turnout.runtimes.setup import Setup
from turnout.types import Replies, Turnout

TOLD = {"training": "training_seconds", "download": "download_seconds", "upload": "upload_seconds"}


@dataclass(frozen=True)
class Done:
    """What a client did: so many steps, and its reply; `t` is the round it was asked in."""

    steps: int
    replies: Replies
    t: int


def times_told(heard: Heard) -> dict[str, float]:
    """Seconds that a device says its training and its transfers took; NaN where it does not say.

    `upload_seconds` are of its reply before this one: how long a reply takes is known when it is there.
    """
    return {column: float(heard.head.get(name, math.nan)) for name, column in TOLD.items()}


class ReplyCheck:
    """Knows what replies must be like, once the first round has shown what they are made of."""

    def __init__(self, setup: Setup, enrolled: Enrolled):
        self.setup, self.algorithm, self.enrolled = setup, setup.algorithm, enrolled
        self.like: Replies | None = None

    def begin(self, data: Description, download: Download) -> None:
        """Make the pattern of a reply, if there is none yet."""
        if self.like is None:
            self.like = template(self.setup, data, download)

    def read(self, client: Client, heard: Heard) -> Done | None:
        """What a client has done; None where it did nothing."""
        steps, t = heard.head.get("steps"), heard.request.t
        if steps is None or REPLY not in heard.parts:
            return None
        client_1 = torch.tensor([client.number])
        if (wrong := Whole(1, int(self.full(client_1, t)[0])).wrong(steps)) is not None:
            raise Refused(f"its steps {wrong}")
        replies = self._replies(heard.parts[REPLY], client_1, steps, t)
        times = {"reply_seconds": time.monotonic() - heard.sent} | times_told(heard)
        timed = {name: torch.tensor([value], dtype=torch.float64) for name, value in times.items()}
        return Done(steps, replace(replies, report=replies.report | timed), t)

    def _replies(self, message: bytes, client_1: Tensor, steps: int, t: int) -> Replies:
        sending = Sending(t, self.setup.experiment.seed, client_1, self.setup.model.layout.shared_slots)
        if not bool(self.algorithm.weighting.counts(self.turnout(client_1, torch.tensor([steps]), t))[0]):
            return border.unfinished(message, self.algorithm, sending)
        assert self.like is not None
        return border.work(message, self.like, self.algorithm, sending)

    def full(self, client_C: Tensor, t: int) -> Tensor:
        """The steps of complete work."""
        return self._turn_out(client_C, torch.ones(len(client_C), dtype=torch.float64), t)[1]

    def turnout(self, client_C: Tensor, steps_C: Tensor, t: int) -> Turnout:
        """The turnout of clients that took so many steps."""
        full_C = self.full(client_C, t)
        return self._turn_out(client_C, torch.where(full_C > 0, steps_C.double() / full_C.clamp(min=1), 0.0), t)[0]

    def _turn_out(self, client_C: Tensor, part_C: Tensor, t: int) -> tuple[Turnout, Tensor]:
        single = self.setup.model.batch_statistics
        return turn_out(client_C, part_C, self.enrolled.examples(client_C), self.algorithm.local, single, t)
