"""Rounds in simulated time: when a round ends, which replies are late, and which late replies arrive in a later round.

The closing discards late replies, or keeps them in flight (state.py) until they arrive.

Shape letters: C clients of the cohort, S all replies, L replies in flight, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.parts.closing import ROUNDING, Closing
from turnout.parts.compression.base import Sending
from turnout.server.asking import Cohort, cohort_of
from turnout.server.state import DECODED, Context, InFlight, Server, ServerTime
from turnout.types import Message, Replies, Times, Turnout

AGE = "age"  # of a report: rounds since the reply was begun


class Closed(NamedTuple):
    """A round as its closing leaves it.

    server   the server, with the time it is now and the replies in flight
    cohort   clients of the round
    turnout  without the work of late clients, with that of clients whose old replies arrive
    replies  that arrived; None: none
    waiting  clients of this round whose replies are still in flight
    seconds  that the round took
    """

    server: Server
    cohort: Cohort
    turnout: Turnout
    replies: Replies | None
    waiting: Tensor
    seconds: float


def close(
    server: Server, cohort: Cohort, turnout: Turnout, replies: Replies | None, t: int, ctx: Context
) -> Closed:  # fmt: skip
    """Close a round in simulated time, as the closing says."""
    time, closing, times = server.time, ctx.algorithm.closing, _times(turnout)
    if replies is not None:  # uploads take as long as what was sent: before training only the longest was known
        position_S = torch.searchsorted(turnout.client_C, replies.client_R)
        saved_S = (times.planned_up - replies.report["bytes_up"]).double() / times.up_C[position_S]
        times = replace(times, upload_C=times.upload_C.index_add(0, position_S, -saved_S))
        turnout = replace(turnout, times=times)
    now, in_time_C = time.now, turnout.present_C & ~times.late_C
    if not closing.uses_late:
        seconds = times.closes
        if times.ends_with_last and bool(in_time_C.any()):  # it may end earlier than planned
            seconds = float(times.arrival_C[in_time_C].max())
        server = replace(server, time=replace(time, now=now + seconds))
        return Closed(server, cohort, _without_late(turnout, seconds), replies, cohort.client_C[:0], seconds)

    fresh, late = (None, InFlight()) if replies is None else _split(server, turnout, replies, t, ctx)
    old = time.in_flight.to(server.shared_P)
    due_L = _due(old, now, turnout, closing)
    arrived, waiting = old.take(due_L), old.take(~due_L).plus(late)
    seconds = times.closes
    if closing.buffer is not None:  # when the last reply arrived; without any, when the server asks again
        both = torch.cat([times.arrival_C[in_time_C], arrived.arrival_L - now])
        seconds = max(0.0, float(both.max())) if len(both) else times.closes
    server = replace(server, time=ServerTime(now + seconds, waiting))
    turnout = _without_late(turnout, seconds, late.client_L)
    turnout = _with_old(turnout, arrived, now, only_arrived=closing.buffer is not None)
    asked_C = torch.isin(turnout.client_C, torch.cat([cohort.asked, arrived.client_L]))
    cohort = cohort_of(turnout.client_C, asked_C, server, ctx)
    if arrived.replies is not None:  # old replies have an age
        joined = replace(arrived.replies, report=arrived.replies.report | {AGE: t - arrived.round_L})
        fresh = joined if fresh is None else Replies.join([replace(fresh, hints={}, uploads={}), joined])
    return Closed(server, cohort, turnout, fresh, late.client_L, seconds)


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


def _times(turnout: Turnout) -> Times:
    assert turnout.times is not None
    return turnout.times


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


def _split(
    server: Server, turnout: Turnout, replies: Replies, t: int, ctx: Context
) -> tuple[Replies | None, InFlight]:  # fmt: skip
    """This round's replies that are on time, and those that stay in flight; all decoded."""
    position_S = torch.searchsorted(turnout.client_C, replies.client_R)
    times, sending = _times(turnout), Sending(t, ctx.seed, replies.client_R, ctx.runtime.layout.shared_slots)
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
