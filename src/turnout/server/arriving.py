"""What arrives before a round is closed: who of the cohort is late, which old replies come in, what time it is then;
and what a simulation has to know of the server to tell.

Shape letters: C clients of the cohort, R replies, L replies under way, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from turnout.exchange import Download, RoundTiming, Runtime
from turnout.experiment import Algorithm
from turnout.machine.profiling import stage
from turnout.parts.closing import ROUNDING, Closing
from turnout.parts.compression.base import Sending
from turnout.server.cohort import Cohort
from turnout.server.downloads import owed_bytes
from turnout.server.finite import without_bad_numbers
from turnout.server.in_flight import DECODED, InFlight, ServerClock
from turnout.server.state import Server
from turnout.types import Message, Replies, Times, Turnout

AGE = "age"  # of a report: rounds since the reply was begun


def round_timing(
    server: Server, algorithm: Algorithm, cohort: Cohort, download: Download, sending: Sending
) -> RoundTiming:
    """What a simulation of time needs to know of the server."""
    clock, in_flight = server.clock, server.clock.in_flight
    owed = partial(owed_bytes, server, algorithm, download, sending)
    limit = algorithm.closing.limit(clock.closing)
    return RoundTiming(clock.now, limit, in_flight.client_L, in_flight.arrival_L, cohort.seats, cohort.drawn, owed)


@dataclass(frozen=True)
class Landed:
    """What a round has to work with when it is closed; `kept` are clients whose replies are under way."""

    server: Server
    cohort: Cohort
    turnout: Turnout
    replies: Replies | None
    kept: Tensor
    seconds: float = 0.0  # what the round took


def landed(
    server: Server, algorithm: Algorithm, runtime: Runtime, cohort: Cohort, turnout: Turnout, replies: Replies | None,
    sending: Sending,
) -> Landed:  # fmt: skip
    """The round as it is when it is closed. Without times everything has arrived."""
    nobody = turnout.client_C[:0]
    if turnout.times is None:
        return Landed(server, cohort, turnout, replies, nobody)
    turnout = with_sent_bytes(turnout, replies)
    times, clock, closing = _times(turnout), server.clock, algorithm.closing
    now = clock.now
    if not closing.uses_late:
        seconds, observed = ended(times, turnout), closing.observe(clock.closing, _seen(times))
        server = replace(server, clock=replace(clock, now=now + seconds, closing=observed))
        return Landed(server, cohort, without_late(turnout, seconds), replies, nobody, seconds)

    fresh, kept = _apart(turnout, replies, server, algorithm, sending, now)
    old = clock.in_flight.to(server.shared_P)
    due_L = _due(old, now, turnout, closing)
    arrived, waiting = old.take(due_L), old.take(~due_L).plus(kept)
    seconds = times.closes if closing.buffer is None else _last(times, turnout, arrived.arrival_L - now)
    here = (~torch.isin(turnout.client_C, kept.client_L)).nonzero().squeeze(1)
    full_L = times.full_C[:0] if arrived.turnout is None else _times(arrived.turnout).full_C
    observed = closing.observe(clock.closing, torch.cat([_seen(times.take(here)), full_L]))
    server = replace(server, clock=ServerClock(now + seconds, observed, waiting))
    turnout = without_late(turnout, seconds, kept.client_L)
    turnout = _with_old(turnout, arrived, now, only_arrived=closing.buffer is not None)
    asked_C = torch.isin(turnout.client_C, torch.cat([cohort.asked, arrived.client_L]))
    cohort = Cohort.made_of(turnout.client_C, asked_C, server, algorithm, runtime)
    return Landed(server, cohort, turnout, _together(fresh, arrived, sending.t), kept.client_L, seconds)


def _seen(times: Times) -> Tensor:
    """Seconds of complete work of the clients that were at work; inf for a late one, whose reply the server never has:
    it knows only that the round was over before."""
    full_C = torch.where(times.late_C, torch.inf, times.full_C)
    return full_C[~torch.isnan(times.full_C)]


def _due(old: InFlight, now: float, turnout: Turnout, closing: Closing) -> Tensor:
    """Which replies in flight arrive in this round: those that are there when it is closed; of an asynchronous step as
    many as it still needs, in order of arrival, equal ones by client."""
    times, arrival_L = _times(turnout), old.arrival_L - now
    if closing.buffer is None:
        return arrival_L <= times.closes + ROUNDING
    wanted = closing.buffer - int((turnout.present_C & ~times.late_C).sum())
    by_client_L = old.client_L.argsort()
    order_L = by_client_L[arrival_L[by_client_L].argsort(stable=True)]
    return torch.zeros_like(arrival_L, dtype=torch.bool).index_fill(0, order_L[:wanted], True)


def _times(turnout: Turnout) -> Times:
    assert turnout.times is not None
    return turnout.times


def with_sent_bytes(turnout: Turnout, replies: Replies | None) -> Turnout:
    """Uploads take what was really sent: before training only the longest message was known."""
    times = _times(turnout)
    if replies is None:
        return turnout
    position_R = torch.searchsorted(turnout.client_C, replies.client_C)
    saved_R = (times.planned_up - replies.report["bytes_up"]).double() / times.up_C[position_R]
    upload_C = times.upload_C.index_add(0, position_R, -saved_R)
    return replace(turnout, times=replace(times, upload_C=upload_C))


def ended(times: Times, turnout: Turnout) -> float:
    """When a round is over: where it ended with its last reply, that may have been shorter than it had to be."""
    in_time_C = turnout.present_C & ~times.late_C
    if not bool(in_time_C.any()):
        return times.closes
    last = float(times.arrival_C[in_time_C].max())
    return last if times.ends_with_last else times.closes


def _last(times: Times, turnout: Turnout, old_L: Tensor) -> float:
    """When the last reply of an asynchronous step arrived; with nobody at all, when the server asks again."""
    fresh_C = times.arrival_C[turnout.present_C & ~times.late_C]
    both = torch.cat([fresh_C, old_L])
    return max(0.0, float(both.max())) if len(both) else times.closes


def without_late(turnout: Turnout, seconds: float, kept: Tensor | None = None) -> Turnout:
    """Late clients have done nothing for this round; they are stopped when it is closed, but those who are `kept`."""
    times = _times(turnout)
    late_C = times.late_C
    gone_C = late_C if kept is None else late_C & ~torch.isin(turnout.client_C, kept)
    cut = times.cut(seconds, gone_C)
    blank_C = late_C & ~gone_C  # what they cost is recorded when they arrive
    blanked: dict[str, Any] = {
        name: torch.where(blank_C, torch.nan, getattr(cut, name))
        for name in ("begin_C", "download_C", "train_C", "upload_C", "bytes_down_C")
    }
    cut = replace(cut, **blanked)
    zero: dict[str, Any] = {name: torch.where(late_C, 0, getattr(turnout, name)) for name in ("work_C", "progress_C")}
    return replace(turnout, times=cut, **zero)


def _apart(
    turnout: Turnout, replies: Replies | None, server: Server, algorithm: Algorithm, sending: Sending, now: float
) -> tuple[Replies | None, InFlight]:
    """Replies of this round that arrive in it, and those that stay under way; all decoded."""
    if replies is None:
        return None, InFlight()
    times = _times(turnout)
    with stage("decode"):
        own = replace(sending, client_C=replies.client_C)
        update_RP = algorithm.compression.decode(replies.message, own, server.shared_P)
    report = replies.report | {AGE: torch.zeros_like(replies.client_C)}
    message = Message({DECODED: update_RP}, replies.message.bytes_C)
    replies = replace(replies, message=message, report=report)
    position_R = torch.searchsorted(turnout.client_C, replies.client_C)
    late_R = times.late_C[position_R]
    in_time = replies.take((~late_R).nonzero().squeeze(1))
    late = without_bad_numbers(replies.take(late_R.nonzero().squeeze(1)), algorithm.nonfinite, sending.t)
    if not len(late.client_C):
        return in_time if len(in_time.client_C) else None, InFlight()
    where = torch.searchsorted(turnout.client_C, late.client_C)
    kept = InFlight(
        replace(late, hints={}, sums={}),
        turnout.take(where),
        now + times.arrival_C[where],
        torch.full_like(where, sending.t),
    )
    return in_time if len(in_time.client_C) else None, kept


def _with_old(turnout: Turnout, arrived: InFlight, now: float, only_arrived: bool) -> Turnout:
    """The turnout with those whose old replies arrive; asynchronous rounds are over those who arrive alone.

    They began before this round did, so their beginning is a negative number of seconds.
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


def _together(fresh: Replies | None, arrived: InFlight, t: int) -> Replies | None:
    """Fresh replies and old ones, these with their age."""
    if arrived.replies is None:
        return fresh
    old = replace(arrived.replies, report=arrived.replies.report | {AGE: t - arrived.round_L})
    if fresh is None:
        return old
    return Replies.join([replace(fresh, hints={}, sums={}), old])
