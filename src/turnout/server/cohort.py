"""Which clients the server asks in a round, and the share each stands for.

Shape letters: C clients of the cohort (sorted by id).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from turnout.context import Context
from turnout.machine.profiling import stage
from turnout.parts.selection import chosen
from turnout.rng import rng_seed
from turnout.server.state import Server


@dataclass(frozen=True)
class Cohort:
    """Clients drawn from the objective, with their shares of it.

    client_C         the clients
    asked_C          which of them are asked: the others left but stay in the objective, or are still busy
    examples_C       their training samples
    share_C          their shares of the cohort
    objective        number of clients in the objective
    objective_share  computes their shares p_k of the whole objective (only if a term needs them)
    seats            asynchronous: number of clients that may start working
    drawn            asynchronous: clients the selection drew first
    """

    client_C: Tensor
    asked_C: Tensor
    examples_C: Tensor
    share_C: Tensor
    objective: int
    objective_share: Callable[[], Tensor]
    seats: int = 0
    drawn: Tensor | None = None

    @cached_property
    def all_asked(self) -> bool:
        """Whether the whole cohort is asked."""
        return bool(self.asked_C.all())

    @cached_property
    def asked(self) -> Tensor:
        """The clients that are asked."""
        return self.client_C if self.all_asked else self.client_C[self.asked_C]


def select_cohort(server: Server, t: int, ctx: Context) -> Cohort:
    """Draw the cohort of a round; it is empty where there are no members."""
    with stage("selection"):
        objective, members, closing = server.objective, server.members, ctx.algorithm.closing
        client_C, busy = torch.empty(0, dtype=torch.int64), server.time.in_flight.client_L
        if len(members):
            client_C = chosen(ctx.algorithm.selection, objective, t, ctx.seed, server.selection)
        drawn, seats = client_C, (getattr(closing, "concurrency", None) or len(client_C)) - len(busy)
        if closing.buffer is not None and len(members):
            client_C = _free_clients(client_C, seats + closing.buffer - 1, server, t, ctx)
        all_C = torch.ones(len(client_C), dtype=torch.bool)  # a selection only draws from the objective
        asked_C = all_C if objective is members else members.which(client_C)
        if len(busy):
            asked_C = asked_C & ~torch.isin(client_C, busy)
        return replace(cohort_of(client_C, asked_C, server, ctx), seats=seats, drawn=drawn)


def cohort_of(client_C: Tensor, asked_C: Tensor, server: Server, ctx: Context) -> Cohort:
    """A cohort of these clients with their shares."""
    objective, shares = server.objective, ctx.algorithm.shares
    examples_C = ctx.runtime.examples(client_C)
    mean = partial(ctx.runtime.mean_examples, objective)
    share_C = shares.of(examples_C, len(objective), mean() if shares.over == "unbiased" else None)
    objective_share = partial(shares.parts, examples_C, len(objective), mean)
    return Cohort(client_C, asked_C, examples_C, share_C, len(objective), objective_share)


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
