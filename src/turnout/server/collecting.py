"""What the server has when a round is closed: replies on time, late replies of earlier rounds, and the time it is then.

Without simulated time (`turnout.times` is None) every reply is on time; with it see late.py.

Shape letters: C clients of the cohort, R usable replies, S all replies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.exchange import Download
from turnout.server.asking import Cohort
from turnout.server.late import close, finite_replies
from turnout.server.state import Context, Server
from turnout.types import Replies, Tensors, Turnout


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


def collect(
    server: Server, cohort: Cohort, download: Download, answer: tuple[Turnout, Replies | None], ctx: Context
) -> Received:
    """Close a round and match each reply to its client. A reply that is not finite is refused or left out."""
    turnout, replies = answer
    if replies is not None:  # where a GPU still trains, this waits for it
        replies = replace(replies, report={name: value.cpu() for name, value in replies.report.items()})
    if len(turnout.client_C) < len(cohort.client_C):
        turnout = turnout.among(cohort.client_C)
    waiting, seconds, is_cut = cohort.client_C[:0], 0.0, False
    if turnout.times is not None:
        server, cohort, turnout, replies, waiting, seconds = close(server, cohort, turnout, replies, download.t, ctx)
        is_cut = server.time.now > ctx.until
    client_S = turnout.client_C[:0] if replies is None else replies.client_R
    position_S = position_R = torch.searchsorted(turnout.client_C, client_S)
    usable, reports = replies, {} if replies is None else replies.report
    bytes_C = torch.empty(0, dtype=torch.float64)
    if not is_cut:
        times = turnout.times
        bytes_C = times.bytes_down_C if times else downloaded_bytes(download, turnout, replies, position_S, ctx)
        if replies is not None and not bool(reports["finite"].all()):
            usable, position_R = (
                finite_replies(replies, ctx.algorithm.nonfinite, download.t),
                position_S[reports["finite"]],
            )
            usable = usable if len(position_R) else None
    return Received(server, cohort, turnout, usable, position_R, reports, position_S, bytes_C, waiting, seconds, is_cut)


def downloaded_bytes(
    download: Download, turnout: Turnout, replies: Replies | None, position_R: Tensor, ctx: Context
) -> Tensor:
    """Bytes that each client of the cohort downloaded, NaN for the absent.

    A client that turned up has downloaded, also if its work does not count (scheme A: it did not finish).
    """
    bytes_C = torch.full((len(turnout.client_C),), torch.nan, dtype=torch.float64)
    silent_C = turnout.present_C.index_fill(0, position_R, False)
    groups = [] if replies is None else [(replies, position_R)]
    if bool(silent_C.any()):
        place_I = silent_C.nonzero().squeeze(1)
        groups.append((ctx.runtime.unfinished(turnout.client_C[place_I], download), place_I))
    for group, place_I in groups:
        owed_I = download.owed(group.client_R, group.message.tensors)
        bytes_C.index_copy_(0, place_I, (owed_I + group.report["bytes_down"]).double())
    return bytes_C
