"""What a reply to work is worth: checked against what a reply of this client must be like, before it is used.

Shape letters: C clients of the cohort.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from turnout.data.description import Description
from turnout.errors import Mistake
from turnout.exchange import Assignment, Download
from turnout.parts.compression.base import Sending
from turnout.parts.local import turn_out
from turnout.runtimes import wire
from turnout.runtimes.border import fault
from turnout.runtimes.flower.enrolled import Client, Enrolled
from turnout.runtimes.flower.messages import REPLY
from turnout.runtimes.flower.post import Heard
from turnout.runtimes.flower.template import template, unlike
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
    """Seconds that a device says its training and its transfers took; NaN where that is no such number.

    `upload_seconds` are of its reply before this one: how long a reply takes is known when it is there.
    """

    def seconds(value: Any) -> float:
        good = type(value) in (int, float) and math.isfinite(value) and value >= 0
        return float(value) if good else math.nan

    return {column: seconds(heard.head.get(name)) for name, column in TOLD.items()}


class ReplyCheck:
    """Knows what replies must be like, once the first round has shown what they are made of."""

    def __init__(self, setup: Setup, enrolled: Enrolled):
        self.setup, self.algorithm, self.enrolled = setup, setup.algorithm, enrolled
        self.like: Replies | None = None

    def begin(self, data: Description, download: Download) -> None:
        """Make the pattern of a reply, if there is none yet."""
        if self.like is None:
            self.like = template(self.setup, data, download)

    def checked(self, client: Client, heard: Heard, download: Download | None) -> Done | str | None:
        """What a client has done; None where it did nothing, words where its reply cannot be used."""
        steps, t = heard.head.get("steps"), heard.letter.t
        if steps is None or REPLY not in heard.parts:
            return None
        try:
            replies = wire.replies_of(wire.unpack(heard.parts[REPLY]))
            wrong = self._wrong(client, steps, replies, t, download)
        except (Mistake, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            wrong = f"its reply cannot be read ({type(error).__name__})"
        if wrong is not None:
            return wrong
        assert self.like is not None
        report = {name: v for name, v in replies.report.items() if name in self.like.report}
        times = {"reply_seconds": time.monotonic() - heard.sent} | times_told(heard)
        report |= {name: torch.tensor([value], dtype=torch.float64) for name, value in times.items()}
        return Done(steps, replace(replies, report=report), t)

    def _wrong(self, client: Client, steps: Any, replies: Replies, t: int, download: Download | None) -> str | None:
        client_1 = torch.tensor([client.number])
        full = int(self.full(client_1, t)[0])
        if type(steps) is not int or not 0 < steps <= full:
            return f"it reports {steps!r} steps of {full}"
        assert self.like is not None
        turnout = self.turnout(client_1, torch.tensor([steps]), t)
        if not bool(self.algorithm.weighting.counts(turnout)[0]):
            held = self.algorithm.compression.held(self.like.message.tensors)
            same = replies.message.tensors.keys() == held.keys() and torch.equal(replies.client_C, client_1)
            return None if same else "it sends an update that does not count"
        wrong = unlike(replies, self.like)
        if wrong is not None:
            return wrong
        layout = self.setup.model.layout
        sending = Sending(t, self.setup.experiment.seed, client_1, layout.shared_slots)
        like = {name: value[0] for name, value in self.like.states.items()}
        like |= {} if download is None else dict(download.states)
        return fault(replies, Assignment(client_1, torch.tensor([steps])), self.algorithm, layout, like, sending)

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
