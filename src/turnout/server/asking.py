"""Which clients the server asks in a round, the share each stands for, and what it sends them.

Shape letters: C clients of the cohort (sorted by id), I any clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from turnout.exchange import Download, RoundTiming, states_to_send
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.selection import chosen
from turnout.parts.terms.base import SelectiveDownload
from turnout.rng import rng_seed
from turnout.server.state import Context, Server
from turnout.types import Tensors, wire_bytes


@dataclass(frozen=True)
class Cohort:
    """Clients drawn from the objective, with their shares of it.

    client_C         the clients
    asked_C          which of them are asked: the others left but stay in the objective, or are still busy
    asked            the clients that are asked
    examples_C       their training samples
    share_C          their shares of the cohort
    objective        number of clients in the objective
    objective_share  computes their shares p_k of the whole objective (only if a term needs them)
    seats            asynchronous: number of clients that may start working
    drawn            asynchronous: clients the selection drew first
    """

    client_C: Tensor
    asked_C: Tensor
    asked: Tensor
    examples_C: Tensor
    share_C: Tensor
    objective: int
    objective_share: Callable[[], Tensor]
    seats: int = 0
    drawn: Tensor | None = None


def select_cohort(server: Server, t: int, ctx: Context) -> Cohort:
    """Draw the cohort of a round; it is empty where there are no members."""
    objective, members, buffer = server.objective, server.members, ctx.algorithm.closing.buffer
    client_C, busy = torch.empty(0, dtype=torch.int64), server.time.in_flight.client_L
    is_empty = not len(members)
    if not is_empty:
        client_C = chosen(ctx.algorithm.selection, objective, t, ctx.seed, server.selection)
    drawn, seats = client_C, (getattr(ctx.algorithm.closing, "concurrency", None) or len(client_C)) - len(busy)
    if buffer is not None and not is_empty:
        client_C = _free_clients(client_C, seats + buffer - 1, server, t, ctx)
    all_C = torch.ones(len(client_C), dtype=torch.bool)  # a selection only draws from the objective
    asked_C = all_C if objective is members else members.which(client_C)
    if len(busy):
        asked_C = asked_C & ~torch.isin(client_C, busy)
    return cohort_of(client_C, asked_C, server, ctx, seats, drawn)


def cohort_of(
    client_C: Tensor, asked_C: Tensor, server: Server, ctx: Context, seats: int = 0, drawn: Tensor | None = None
) -> Cohort:
    """A cohort of these clients with their shares."""
    objective, shares = server.objective, ctx.algorithm.shares
    examples_C, number = ctx.runtime.examples(client_C), len(objective)
    mean = partial(ctx.runtime.mean_examples, objective)
    share_C = shares.of(examples_C, number, mean() if shares.over == "unbiased" else None)
    asked = client_C if bool(asked_C.all()) else client_C[asked_C]
    objective_share = partial(shares.parts, examples_C, number, mean)
    return Cohort(client_C, asked_C, asked, examples_C, share_C, number, objective_share, seats, drawn)


def _free_clients(client_C: Tensor, wanted: int, server: Server, t: int, ctx: Context) -> Tensor:
    """Asynchronous: the drawn clients that are not busy, completed by further draws if they are too few.

    `wanted` is the number that may start in one step: one per free seat, and one per reply but the last.
    """
    busy, draws = server.time.in_flight.client_L, 1
    rest = server.objective.minus(torch.cat([busy, client_C]))
    client_C = client_C[~torch.isin(client_C, busy)]
    while int(server.members.which(client_C).sum()) < wanted and len(rest):
        more_C = chosen(ctx.algorithm.selection, rest, t, rng_seed(ctx.seed, "draw again", draws), server.selection)
        if not len(more_C):
            break
        client_C, rest, draws = torch.cat([client_C, more_C]), rest.minus(more_C), draws + 1
    return client_C.sort().values


def make_download(server: Server, cohort: Cohort, t: int, ctx: Context) -> Download:
    """What the server sends to the clients it asks. The learning rate is by the clock: rounds since the objective last
    shifted."""
    algorithm, client_C, held, time = ctx.algorithm, cohort.asked, server.term_states, server.time
    start_CP = algorithm.mixing.starts(server.mixing, client_C, server.shared_P)
    states = states_to_send(server.states, algorithm.newcomers)
    return Download(
        t=t,
        lr=algorithm.local.schedule.rate(algorithm.local.optimizer.lr, t - server.origin),
        shared_P=server.shared_P,
        states=states,
        term_states={
            term.name: term.broadcast(held[term.name]) if isinstance(term, SelectiveDownload) else held[term.name]
            for term in algorithm.terms
        },
        client_C=client_C,
        start_CP=start_CP,
        outbox=server.outbox.among(client_C) if server.outbox.messages else server.outbox,
        missed=partial(algorithm.compression.missed, server.compression, slots=ctx.runtime.layout.shared_slots),
        owed=partial(owed_bytes, server, start_CP is None, wire_bytes(states), t, ctx),
        timing=lambda: RoundTiming(
            now=time.now,
            limit=algorithm.closing.limit,
            client_F=time.in_flight.client_L,
            arrival_F=time.in_flight.arrival_L,
            seats=cohort.seats,
            drawn=cohort.drawn,
        ),
    )


def owed_bytes(
    server: Server, from_shared: bool, beside: int, t: int, ctx: Context, client_I: Tensor, held: Tensors
) -> Tensor:
    """Bytes that bring clients up to date, given what they hold: the model or what they missed of it, and states.

    `from_shared`: whether they start from the shared parameters; a row of their own is never sent as a difference.
    """
    way_down = ctx.algorithm.compression if from_shared else Dense()
    sending = Sending(t, ctx.seed, client_I, ctx.runtime.layout.shared_slots)
    return way_down.catch_up(server.compression, held, sending) + beside
