"""The record of a round: who turned up, what each update weighed, what it cost.

`RoundRecord` and `Evaluation` are the rows of a run's records. `record_of` makes the first from a `Round`.

Shape letters: C clients of the cohort, S replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.clients.metrics import summary
from turnout.round import Round
from turnout.server.collecting import Received
from turnout.server.state import Context
from turnout.types import SQUARED, Extra, Happened, Tensors, Times, wire_bytes

COUNTED = ("loss", "finite", "bytes_up", "bytes_down", SQUARED)  # entries of a report that are counted elsewhere
CUT = "the simulated hours ended before the round did"  # why a round is skipped that would end after the run does


@dataclass(frozen=True)
class RoundRecord:
    """One round, as the server saw it.

    round       its number, from 0
    skipped     why the round changed nothing (no client answered, ...); None for an ordinary round
    clock       rounds since the objective last shifted: the argument of the schedule
    lr          learning rate of the clients
    members     enrolled clients
    asked, answered, counted  clients asked, clients that answered, clients whose updates were used
    work        mean fraction of the work finished by the clients asked
    weight_sum, weight_max    of the coefficients of updates
    train_loss  mean training loss, by shares
    bytes_up, bytes_down      sent by and to all clients
    seconds     duration of the round, its evaluation included
    extra       numbers or texts that parts add ("elastic_loss", "pairs_compared")
    clients     one row per client asked: "client" and any of work, share, weight, loss, examples, bytes_up, bytes_down,
                seconds, friend, or others
    events      joins, leaves, drops and returns
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


@dataclass(frozen=True)
class Evaluation:
    """Metrics of the model after a round.

    round       its number; -1: before training
    values      value of each metric
    per_client  metric -> the clients it was measured on, and their values
    """

    round: int
    values: Mapping[str, float] = field(default_factory=dict)
    per_client: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


def record_of(happened: Round, ctx: Context) -> RoundRecord:
    """The record of a round."""
    t, changes, received, total = happened.t, happened.changes, happened.received, happened.total
    clock, local, members = t - happened.start.origin, ctx.algorithm.local, len(happened.start.members)
    lr = happened.download.lr if happened.download else local.schedule.rate(local.optimizer.lr, clock)
    if received is None:
        why = "no client was asked"
        return RoundRecord(
            t, why, clock, lr, members, bytes_up=changes.bytes_up, extra=changes.extra, events=changes.events
        )
    times, turnout, cohort = received.turnout.times, received.turnout, received.cohort
    if received.is_cut and times is not None:
        extra = _cut(times, happened.before.time.now, ctx.until)
        return RoundRecord(t, CUT, clock, lr, members, extra=extra)

    finished_C = turnout.work_C / turnout.full_work
    columns = {"client": turnout.client_C, "work": finished_C, "share": cohort.share_C, "examples": cohort.examples_C}
    extra, bytes_down, skipped = Extra(), int(received.bytes_down_C.nansum()), None
    answered = int(turnout.present_C.sum())
    if times is not None:
        columns |= {f"{name}_time": getattr(times, f"{name}_C") for name in ("download", "train", "upload")}
        columns |= {"begin_time": times.begin_C, "late": times.late_C.long(), "tier": times.tier_C}
        extra |= _time_spent(received, times) | ({"tiers": " ".join(times.tiers)} if t == 0 else {})
    columns["bytes_down"] = received.bytes_down_C
    train_loss, bytes_up = None, 0
    if received.reports:
        reported, more, train_loss = _reported(received)
        columns, extra, bytes_up = columns | reported, extra | more, int(received.reports["bytes_up"].sum())
    elif total is None:
        skipped = "no client's work counts" if answered else "no client answered"
    if received.reports and total is None:
        skipped = "no update that counts is finite"
    counted, weight_sum, weight_max = 0, None, None
    if total is not None:
        weight_C = torch.zeros_like(cohort.share_C).index_copy(0, total.position_R, total.weight_R)
        counted, weight_max, columns["weight"] = len(total.client_R), float(weight_C.max()), weight_C
        weight_sum = float(weight_C.sum()) if ctx.algorithm.weighting.of_updates else None
        message = sum(map(wire_bytes, happened.after.outbox.messages.get(t, {}).values()))
        if message:
            bytes_down += message * counted
            columns["bytes_down"] = columns["bytes_down"] + message * turnout.mask(total.position_R)
        if total.friend_C is not None:
            columns["friend"] = total.friend_C
        extra |= total.extra | happened.extra
    asked, asked_C = len(cohort.asked), cohort.asked_C
    if asked < len(asked_C):
        columns, finished_C = {name: value_C[asked_C] for name, value_C in columns.items()}, finished_C[asked_C]
    return RoundRecord(
        round=t,
        skipped=skipped,
        clock=clock,
        lr=lr,
        members=members,
        asked=asked,
        answered=answered,
        counted=counted,
        work=float(finished_C.mean()),
        weight_sum=weight_sum,
        weight_max=weight_max,
        train_loss=train_loss,
        bytes_up=changes.bytes_up + bytes_up,
        bytes_down=bytes_down,
        extra=changes.extra | extra,
        clients=columns,
        events=changes.events,
    )


def _cut(times: Times, began: float, until: float) -> Extra:
    """Simulated time of a round that would end after the run does: what its devices spent until then is wasted."""
    stopped = times.cut(until - began, torch.ones_like(times.late_C))
    spent: Extra = dict.fromkeys(("device_seconds", "wasted_device_seconds"), float(stopped.spent_C.sum()))
    return spent | {"simulated_seconds": until - began, "simulated_time": until, "late": 0.0}


def _time_spent(received: Received, times: Times) -> Extra:
    """Simulated time of a round; what devices spent on replies that were not used is wasted."""
    unused_C, spent_C = torch.ones_like(times.late_C), times.spent_C
    unused_C[received.position_S] = False
    return {
        "simulated_seconds": received.seconds,
        "simulated_time": received.server.time.now,
        "device_seconds": float(spent_C.sum()),
        "wasted_device_seconds": float(spent_C[unused_C].sum()),
        "late": float(times.late_C.sum()),
    }


def _reported(received: Received) -> tuple[Tensors, Extra, float | None]:
    """Columns and numbers from the reports of all replies, finite or not, and the mean training loss."""
    reports, position_S, clients = received.reports, received.position_S, received.turnout.client_C
    finite_S, loss_S = reports["finite"], reports["loss"].to(torch.float64)
    more = {name: value for name, value in reports.items() if name not in COUNTED}
    columns = over_cohort({"loss": loss_S, "bytes_up": reports["bytes_up"]} | more, position_S, len(clients))
    noisy_S = more["noisy"][finite_S] if "noisy" in more else None
    extra: Extra = {}
    for name, value_S in more.items():
        if name != "noisy":
            extra |= summary(name, value_S[finite_S], noisy_S)
    if not bool(finite_S.all()):
        extra["nonfinite_clients"] = " ".join(map(str, clients[position_S[~finite_S]].tolist()))
    return columns, extra, mean_of(loss_S, received.cohort.share_C[position_S], finite_S)


def over_cohort(numbers: Tensors, position_S: Tensor, clients: int) -> Tensors:
    """Numbers of the clients that replied, as columns over the cohort, NaN for the others."""
    blank_C = torch.full((clients,), float("nan"), dtype=torch.float64)
    return {name: blank_C.index_copy(0, position_S, value.to(torch.float64)) for name, value in numbers.items()}


def mean_of(value_S: Tensor, share_S: Tensor, finite_S: Tensor) -> float | None:
    """Mean of the finite values by shares; None without any."""
    if not bool(finite_S.all()):
        share_S, value_S = share_S[finite_S], value_S[finite_S]
    return float((share_S * value_S).sum() / share_S.sum()) if len(value_S) else None
