"""What the server has when a round is closed: replies on time, late replies of earlier rounds, and the time it is then.

Without simulated time (`turnout.times` is None) every reply is on time. With it, the closing decides: it discards late
replies, or keeps them in flight until they arrive in a later round.

Shape letters: C clients of the cohort, R usable replies, S all replies, L replies in flight, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from turnout.context import Context
from turnout.errors import UserError
from turnout.exchange import Download
from turnout.machine.profiling import stage
from turnout.parts.closing import ROUNDING, Closing
from turnout.parts.compression.base import Sending
from turnout.server.cohort import Cohort, cohort_of
from turnout.server.downloads import downloaded_bytes
from turnout.server.in_flight import DECODED, InFlight, ServerTime
from turnout.server.state import Server
from turnout.types import Message, Replies, Tensors, Times, Turnout

AGE = "age"  # of a report: rounds since the reply was begun


@dataclass(frozen=True)
class Received:
    """What the server has when a round is closed.

    server        the server, with the time it is now and the replies still in flight
    cohort        clients of the round: those drawn, and those whose late replies arrive now
    turnout       who turned up, with how much work
    replies       usable replies, all finite; None: there are none
    position_R    each usable reply's place in the cohort
    reports       what all replies reported, usable or not: name -> [S]
    position_S    each reply's place in the cohort
    bytes_down_C  bytes each client downloaded, NaN for the absent
    waiting       clients whose replies are still in flight
    seconds       simulated seconds that the round took
    is_cut        the run ends before this round does
    """

    server: Server
    cohort: Cohort
    turnout: Turnout
    replies: Replies | None
    position_R: Tensor
    reports: Tensors
    position_S: Tensor
    bytes_down_C: Tensor
    waiting: Tensor
    seconds: float = 0.0
    is_cut: bool = False


@dataclass(frozen=True)
class _Closed:
    """A round as its closing leaves it; `position_S` is None if the cohort is another one than was asked."""

    server: Server
    cohort: Cohort
    turnout: Turnout
    replies: Replies | None
    position_S: Tensor | None
    waiting: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    seconds: float = 0.0


def collect(
    server: Server, cohort: Cohort, download: Download, answer: tuple[Turnout, Replies | None], ctx: Context
) -> Received:
    """Close a round and match each reply to its client. A reply that is not finite is refused or left out."""
    turnout, replies = answer[0].among(cohort.client_C), answer[1]
    client_S = cohort.client_C[:0] if replies is None else replies.client_R
    closed = _Closed(server, cohort, turnout, replies, torch.searchsorted(turnout.client_C, client_S))
    if turnout.times is not None:
        closed = _close(closed, download.t, ctx)
    server, turnout, replies, position_S = closed.server, closed.turnout, closed.replies, closed.position_S
    if position_S is None:
        client_S = turnout.client_C[:0] if replies is None else replies.client_R
        position_S = torch.searchsorted(turnout.client_C, client_S)
    usable, position_R, reports = replies, position_S, {} if replies is None else replies.report
    is_cut = turnout.times is not None and server.time.now > ctx.until
    bytes_C = torch.empty(0, dtype=torch.float64)
    if not is_cut:
        times = turnout.times
        bytes_C = times.bytes_down_C if times else downloaded_bytes(download, turnout, replies, position_S, ctx)
        usable = None if replies is None else finite_replies(replies, ctx.algorithm.nonfinite, download.t)
        if usable is not replies:
            position_R = position_S[reports["finite"]]
            usable = usable if len(position_R) else None
    return Received(
        server, closed.cohort, turnout, usable, position_R, reports, position_S, bytes_C, closed.waiting,
        closed.seconds, is_cut,
    )  # fmt: skip


def finite_replies(replies: Replies, nonfinite: str, t: int) -> Replies:
    """The replies that are finite throughout; `nonfinite` says whether others are left out or stop the run."""
    finite_S = replies.report["finite"]
    if bool(finite_S.all()):
        return replies
    if nonfinite == "absent":
        return replies.take(finite_S.nonzero().squeeze(1))
    clients, loss = replies.client_R[~finite_S].tolist(), float(replies.report["loss"][~finite_S][0])
    raise not_finite("the update", clients, t, loss)


def not_finite(what: str, clients: list[int], t: int, loss: float) -> UserError:
    """The error for clients that sent something that is not finite."""
    verb = "are" if what.endswith("s") else "is"
    more = f"; {len(clients)} clients in all" if len(clients) > 1 else ""
    return UserError(
        f"{what} of client {clients[0]} in round {t} {verb} not finite (its training loss was {loss:g}{more}): lower "
        "algorithm.local.optimizer.lr, look at that client's data, or set algorithm.nonfinite = 'absent' to train "
        "without such replies"
    )


# -- simulated time


def _close(asked: _Closed, t: int, ctx: Context) -> _Closed:
    """Close a round in simulated time, as the closing says."""
    assert asked.position_S is not None
    turnout = _with_sent_bytes(asked.turnout, asked.replies, asked.position_S)
    times, time, closing = _times(turnout), asked.server.time, ctx.algorithm.closing
    now = time.now
    if not closing.uses_late:
        seconds = _end(times, turnout)
        server = replace(asked.server, time=replace(time, now=now + seconds))
        return replace(asked, server=server, turnout=_without_late(turnout, seconds), seconds=seconds)

    fresh, late = _split(replace(asked, turnout=turnout), t, ctx)
    old = time.in_flight.to(asked.server.shared_P)
    due_L = _due(old, now, turnout, closing)
    arrived, waiting = old.take(due_L), old.take(~due_L).plus(late)
    seconds = times.closes if closing.buffer is None else _last_arrival(times, turnout, arrived.arrival_L - now)
    server = replace(asked.server, time=ServerTime(now + seconds, waiting))
    turnout = _without_late(turnout, seconds, late.client_L)
    turnout = _with_old(turnout, arrived, now, only_arrived=closing.buffer is not None)
    asked_C = torch.isin(turnout.client_C, torch.cat([asked.cohort.asked, arrived.client_L]))
    cohort = cohort_of(turnout.client_C, asked_C, server, ctx)
    return _Closed(server, cohort, turnout, _join(fresh, arrived, t), None, late.client_L, seconds)


def _times(turnout: Turnout) -> Times:
    assert turnout.times is not None
    return turnout.times


def _with_sent_bytes(turnout: Turnout, replies: Replies | None, position_S: Tensor) -> Turnout:
    """The turnout with uploads as long as what was sent: before training only the longest message was known."""
    times = _times(turnout)
    if replies is None:
        return turnout
    saved_S = (times.planned_up - replies.report["bytes_up"]).double() / times.up_C[position_S]
    upload_C = times.upload_C.index_add(0, position_S, -saved_S)
    return replace(turnout, times=replace(times, upload_C=upload_C))


def _end(times: Times, turnout: Turnout) -> float:
    """When a round ends; one that ends with its last reply may end earlier than planned, if that was shorter."""
    in_time_C = turnout.present_C & ~times.late_C
    if not times.ends_with_last or not bool(in_time_C.any()):
        return times.closes
    return float(times.arrival_C[in_time_C].max())


def _last_arrival(times: Times, turnout: Turnout, old_L: Tensor) -> float:
    """When the last reply of an asynchronous step arrived; without any, when the server asks again."""
    both = torch.cat([times.arrival_C[turnout.present_C & ~times.late_C], old_L])
    return max(0.0, float(both.max())) if len(both) else times.closes


def _due(old: InFlight, now: float, turnout: Turnout, closing: Closing) -> Tensor:
    """Which replies in flight arrive in this round.

    A round takes those that arrive before it is closed; an asynchronous step as many as it still needs, in order of
    arrival, equal ones by client.
    """
    times, arrival_L = _times(turnout), old.arrival_L - now
    if closing.buffer is None:
        return arrival_L <= times.closes + ROUNDING
    wanted = closing.buffer - int((turnout.present_C & ~times.late_C).sum())
    by_client_L = old.client_L.argsort()
    order_L = by_client_L[arrival_L[by_client_L].argsort(stable=True)]
    return torch.zeros_like(arrival_L, dtype=torch.bool).index_fill(0, order_L[:wanted], True)


def _split(asked: _Closed, t: int, ctx: Context) -> tuple[Replies | None, InFlight]:
    """This round's replies that are on time, and those that stay in flight; all decoded."""
    server, turnout, replies, position_S = asked.server, asked.turnout, asked.replies, asked.position_S
    if replies is None or position_S is None:
        return None, InFlight()
    times, sending = _times(turnout), Sending(t, ctx.seed, replies.client_R, ctx.layout.shared_slots)
    with stage("decode"):
        update_SP = ctx.algorithm.compression.decode(replies.message, sending, server.shared_P)
    message = Message({DECODED: update_SP}, replies.message.bytes_C)
    report = replies.report | {AGE: torch.zeros_like(replies.client_R)}
    replies = replace(replies, message=message, report=report)
    late_S = times.late_C[position_S]
    in_time = replies.take((~late_S).nonzero().squeeze(1))
    late, where = replies.take(late_S.nonzero().squeeze(1)), position_S[late_S]
    usable = finite_replies(late, ctx.algorithm.nonfinite, t)
    where = where if usable is late else where[late.report["finite"]]
    kept = InFlight()
    if len(where):
        arrival_L, round_L = server.time.now + times.arrival_C[where], torch.full_like(where, t)
        kept = InFlight(replace(usable, hints={}, uploads={}), turnout.take(where), arrival_L, round_L)
    return in_time if len(in_time.client_R) else None, kept


def _without_late(turnout: Turnout, seconds: float, kept: Tensor | None = None) -> Turnout:
    """The turnout without the work of late clients, who stop when the round is closed unless their reply is kept."""
    times = _times(turnout)
    late_C = times.late_C
    stopped_C = late_C if kept is None else late_C & ~torch.isin(turnout.client_C, kept)
    cut = times.cut(seconds, stopped_C)
    blank_C = late_C & ~stopped_C  # what they cost is recorded when they arrive
    blanked: dict[str, Any] = {
        name: torch.where(blank_C, torch.nan, getattr(cut, name))
        for name in ("begin_C", "download_C", "train_C", "upload_C", "bytes_down_C")
    }
    zero: dict[str, Any] = {name: torch.where(late_C, 0, getattr(turnout, name)) for name in ("work_C", "progress_C")}
    return replace(turnout, times=replace(cut, **blanked), **zero)


def _with_old(turnout: Turnout, arrived: InFlight, now: float, only_arrived: bool) -> Turnout:
    """The turnout with clients whose old replies arrive; an asynchronous step has only clients that replied.

    They began before this round did, so they begin at a negative number of seconds.
    """
    if only_arrived:
        turnout = turnout.take(turnout.present_C.nonzero().squeeze(1))
    if arrived.turnout is None:
        return turnout
    times = _times(arrived.turnout)
    begin_L = arrived.arrival_L - now - (times.arrival_C - times.begin_C)
    old = replace(arrived.turnout, times=replace(times, begin_C=begin_L, late_C=torch.zeros_like(times.late_C)))
    others = (~torch.isin(turnout.client_C, arrived.client_L)).nonzero().squeeze(1)
    return turnout.take(others).join(old)


def _join(fresh: Replies | None, arrived: InFlight, t: int) -> Replies | None:
    """Fresh replies and old ones, these with their age."""
    if arrived.replies is None:
        return fresh
    old = replace(arrived.replies, report=arrived.replies.report | {AGE: t - arrived.round_L})
    if fresh is None:
        return old
    return Replies.join([replace(fresh, hints={}, uploads={}), old])
