"""What the server sends to a cohort, and the bytes each client downloads.

Shape letters: C clients of the cohort, R replies, I any clients.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from turnout.context import Context
from turnout.exchange import Download, RoundTiming, states_to_send
from turnout.machine.profiling import stage
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.terms.base import broadcast
from turnout.server.cohort import Cohort
from turnout.server.state import Server
from turnout.types import Replies, Tensors, Turnout, wire_bytes


def make_download(server: Server, cohort: Cohort, t: int, ctx: Context) -> Download:
    """What the server sends to the clients it asks."""
    algorithm, client_C = ctx.algorithm, cohort.asked
    server_state = broadcast(algorithm.terms, server.term_states)
    with stage("mixing"):
        start_CP = algorithm.mixing.starts(server.mixing, client_C, server.shared_P)
    states, lr = states_to_send(server.states, algorithm.newcomers), learning_rate(server, t, ctx)
    missed = partial(algorithm.compression.missed, server.compression, slots=ctx.layout.shared_slots)
    owed = partial(owed_bytes, server, start_CP is None, wire_bytes(states), t, ctx)
    time, closing = server.time, algorithm.closing
    timing = RoundTiming(
        now=time.now,
        limit=closing.limit,
        client_F=time.in_flight.client_L,
        arrival_F=time.in_flight.arrival_L,
        seats=cohort.seats,
        drawn=cohort.drawn,
        owed=owed,
    )
    outbox = server.outbox.among(client_C)
    return Download(t, lr, server.shared_P, states, server_state, client_C, start_CP, outbox, missed, timing)


def learning_rate(server: Server, t: int, ctx: Context) -> float:
    """The clients' learning rate, a function of the clock: rounds since the objective last shifted."""
    return ctx.algorithm.local.schedule.rate(ctx.algorithm.local.optimizer.lr, t - server.origin)


def owed_bytes(
    server: Server, from_shared: bool, beside: int, t: int, ctx: Context, client_I: Tensor, held: Tensors
) -> Tensor:
    """Bytes that bring clients up to date, given what they hold: the model or what they missed of it, and states.

    `from_shared`: whether they start from the shared parameters; a row of their own is never sent as a difference.
    """
    way_down = ctx.algorithm.compression if from_shared else Dense()
    sending = Sending(t, ctx.seed, client_I, ctx.layout.shared_slots)
    return way_down.catch_up(server.compression, held, sending) + beside


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
        with stage("broadcast"):
            owed_I = download.timing.owed(group.client_R, group.message.tensors)
        bytes_C.index_copy_(0, place_I, (owed_I + group.report["bytes_down"]).double())
    return bytes_C
