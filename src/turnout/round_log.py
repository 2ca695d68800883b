"""What is written down of a round: who turned up, what they weighed, what it cost.

`RoundRecord` and `Evaluation` are the rows that a run's records are made of; `RoundLog` is filled in while a round of
either track goes on, and makes the row.

Shape letters: C clients of the cohort, R replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.clients.metrics import summary
from turnout.parts.terms.base import SelectiveDownload, Term
from turnout.server.arriving import Landed
from turnout.server.cohort import Cohort
from turnout.server.opening import MembershipChanges
from turnout.server.state import Served
from turnout.types import Extra, Happened, Replies, Tensors, Times, Turnout, wire_bytes

COUNTED = ("loss", "finite", "bytes_up", "bytes_down")  # of a report: what has columns of its own


@dataclass(frozen=True)
class RoundRecord:
    """One round, as the server saw it.

    skipped   why the round changed nothing (nobody answered, ...), None for an ordinary round
    clock     rounds since the objective last shifted: what the schedule saw
    work      mean fraction finished among the asked; `clients["work"]` is each one's fraction in [0, 1]
    seconds   what the round took, its evaluation included
    extra     numbers or words that parts add ("elastic_loss", "pairs_compared")
    clients   one row per client asked: "client" and any of work, share, weight, loss, examples, bytes_up,
              bytes_down, seconds, friend, or others
    """

    round: int
    skipped: str | None = None
    clock: int = 0
    lr: float | None = None
    members: int = 0
    asked: int = 0
    answered: int = 0
    counted: int = 0
    work: float | None = None
    weight_sum: float | None = None
    weight_max: float | None = None
    train_loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    extra: Mapping[str, float | str] = field(default_factory=dict)
    clients: Mapping[str, Tensor] = field(default_factory=dict)
    events: Sequence[Happened] = ()


CUT = "the simulated hours ended before the round did"  # why a round is skipped that would end after the run does


@dataclass(frozen=True)
class Evaluation:
    """Metrics of the model after a round (round -1: before training).

    per_client maps a metric to the clients it was measured on and their values.
    """

    round: int
    values: Mapping[str, float] = field(default_factory=dict)
    per_client: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass
class RoundLog:
    """The log of a round while it goes on. Columns are over the whole cohort; the record has those who were asked."""

    t: int
    clock: int
    lr: float
    members: int
    opening: MembershipChanges
    asked_C: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    columns: Tensors = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)
    asked: int = 0
    answered: int = 0
    counted: int = 0
    work: float | None = None
    weight_sum: float | None = None
    weight_max: float | None = None
    train_loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0

    def attended(self, turnout: Turnout, cohort: Cohort) -> None:
        """Who turned up."""
        self.turned_up(turnout, cohort.asked_C, cohort.share_C, cohort.examples_C)

    def turned_up(self, turnout: Turnout, asked_C: Tensor, share_C: Tensor, examples_C: Tensor) -> None:
        """Who turned up of those who were asked, and what each of the cohort stands for."""
        finished_C = turnout.work_C / turnout.full_work
        self.asked_C, self.asked = asked_C, int(asked_C.sum())
        self.answered = int(turnout.present_C.sum())
        self.work = float((finished_C if self.asked == len(asked_C) else finished_C[asked_C]).mean())
        self.columns |= {"client": turnout.client_C, "work": finished_C}
        self.columns |= {"share": share_C, "examples": examples_C}

    def took(self, arrival: Landed) -> None:
        """What the round took in simulated time, and each of its clients; what was for nothing is wasted."""
        times, replies = arrival.turnout.times, arrival.replies
        if times is None:
            return
        client_C = arrival.turnout.client_C
        used_C = torch.isin(client_C, client_C[:0] if replies is None else replies.client_C)
        spent_C = times.spent_C
        self.columns |= {f"{name}_time": getattr(times, f"{name}_C") for name in ("download", "train", "upload")}
        self.columns |= {"begin_time": times.begin_C, "late": times.late_C.long(), "tier": times.tier_C}
        self.extra |= {
            "simulated_seconds": arrival.seconds,
            "simulated_time": arrival.server.clock.now,
            "device_seconds": float(spent_C.sum()),
            "wasted_device_seconds": float(spent_C[~used_C].sum()),
            "late": float(times.late_C.sum()),
        }
        if self.t == 0:
            self.extra["tiers"] = " ".join(times.tiers)
        self.fetched(times.bytes_down_C)

    def cut(self, times: Times, began: float, until: float) -> RoundRecord:
        """The row of a round that would end after the run does: what its devices spent until then is wasted."""
        stopped = times.cut(until - began, torch.ones_like(times.late_C))
        spent: Extra = dict.fromkeys(("device_seconds", "wasted_device_seconds"), float(stopped.spent_C.sum()))
        spent |= {"simulated_seconds": until - began, "simulated_time": until, "late": 0.0}
        return RoundRecord(self.t, CUT, self.clock, self.lr, self.members, extra=spent)

    def reported(self, numbers: Tensors, position_R: Tensor) -> None:
        """Numbers of those who replied, by name: each becomes a column over the cohort."""
        self.columns |= {name: self._over_cohort(value_R, position_R) for name, value_R in numbers.items()}

    def fetched(self, bytes_C: Tensor) -> None:
        """What each had to download, NaN for the absent."""
        self.columns["bytes_down"] = bytes_C
        self.bytes_down = int(bytes_C.nansum())

    def travelled(self, replies: Replies, position_R: Tensor) -> None:
        """What was sent, whether it could be used or not."""
        up_R, loss_R = replies.report["bytes_up"], replies.report["loss"].to(torch.float64)
        finite_R = replies.report["finite"]
        more = {name: value for name, value in replies.report.items() if name not in COUNTED}
        self.reported({"loss": loss_R, "bytes_up": up_R} | more, position_R)
        self.bytes_up = int(up_R.sum())
        self.train_loss = mean_of(loss_R, self.columns["share"][position_R], finite_R)
        self.extra |= noticed(more, finite_R)
        if not bool(finite_R.all()):
            self.extra["nonfinite_clients"] = " ".join(map(str, replies.client_C[~finite_R].tolist()))

    def _over_cohort(self, value_R: Tensor, position_R: Tensor) -> Tensor:
        blank_C = torch.full((len(self.asked_C),), float("nan"), dtype=torch.float64)
        return blank_C.index_copy(0, position_R, value_R.to(torch.float64))

    def weighed(self, served: Served, of_updates: bool) -> None:
        """What each client's reply weighed (their sum, where weights are of whole updates), and what they are told."""
        outbox = sum(wire_bytes(tensors) for tensors in served.outbox.values())
        self.counted = int(served.counts_C.sum())
        self.weight_sum = float(served.weight_C.sum()) if of_updates else None
        self.weight_max = float(served.weight_C.max())
        self.bytes_down += outbox * self.counted
        self.columns["weight"] = served.weight_C
        if outbox:
            self.columns["bytes_down"] = self.columns["bytes_down"] + outbox * served.counts_C
        if served.lent.friend_C is not None:
            self.columns["friend"] = served.lent.friend_C
        self.extra |= served.extra

    def _of_asked(self) -> Tensors:
        """The columns of those who were asked."""
        if self.asked == len(self.asked_C):
            return dict(self.columns)
        return {name: value_C[self.asked_C] for name, value_C in self.columns.items()}

    def record(self, skipped: str | None = None) -> RoundRecord:
        """The row of this round."""
        return RoundRecord(
            round=self.t,
            skipped=skipped,
            clock=self.clock,
            lr=self.lr,
            members=self.members,
            asked=self.asked,
            answered=self.answered,
            counted=self.counted,
            work=self.work,
            weight_sum=self.weight_sum,
            weight_max=self.weight_max,
            train_loss=self.train_loss,
            bytes_up=self.opening.bytes_up + self.bytes_up,
            bytes_down=self.bytes_down,
            extra=self.opening.extra | self.extra,
            clients=self._of_asked(),
            events=self.opening.events,
        )


def mean_of(value_R: Tensor, share_R: Tensor, finite_R: Tensor) -> float | None:
    """The mean of those values that are numbers, by shares; None without any."""
    if not bool(finite_R.all()):
        share_R, value_R = share_R[finite_R], value_R[finite_R]
    return float((share_R * value_R).sum() / share_R.sum()) if len(value_R) else None


def noticed(more: Tensors, finite_R: Tensor) -> dict[str, float]:
    """Means over participants of what they noticed of themselves (evaluation/probes.py), by noisy and clean."""
    noisy_R = more["noisy"][finite_R] if "noisy" in more else None
    found: dict[str, float] = {}
    for name, value_R in more.items():
        if name != "noisy":
            found |= summary(name, value_R[finite_R], noisy_R)
    return found


def terms_bytes(terms: Sequence[Term], down: dict[str, Tensors], mine: dict[str, Tensors], clients: int) -> Tensor:
    """What each client downloads for its terms."""
    total_C = torch.zeros(clients, dtype=torch.int64)
    for term in terms:
        own_C = None
        if isinstance(term, SelectiveDownload):
            own_C = term.fetched(down[term.name], mine.get(term.name, {}))
        total_C += wire_bytes(down[term.name]) if own_C is None else own_C.cpu()
    return total_C
