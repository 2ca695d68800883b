"""Whom the server asks in a round, and what each stands for.

Shape letters: C clients of the cohort (sorted by id).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from turnout.exchange import Runtime
from turnout.experiment import Algorithm
from turnout.parts.selection import chosen
from turnout.rng import rng_seed
from turnout.server.state import Server


@dataclass(frozen=True)
class Cohort:
    """Clients drawn from the objective, with their shares of it.

    `asked_C` are members; the others have left but stay in the objective, or are still busy: drawn, and absent. `parts`
    are the cohort's p_k in the whole objective, which are counted only if a term asks.
    """

    client_C: Tensor
    asked_C: Tensor
    examples_C: Tensor
    share_C: Tensor
    objective: int  # clients the objective is over
    parts: Callable[[], Tensor]
    seats: int = 0  # asynchronous: how many more clients may be at work, and
    drawn: Tensor | None = None  # whom the selection drew first

    @cached_property
    def everyone(self) -> bool:
        """Whether all of them are asked."""
        return bool(self.asked_C.all())

    @cached_property
    def asked(self) -> Tensor:
        """The clients that are asked."""
        return self.client_C if self.everyone else self.client_C[self.asked_C]

    @staticmethod
    def of(server: Server, t: int, seed: int, algorithm: Algorithm, runtime: Runtime) -> Cohort:
        """The cohort of a round; nobody is asked where there are no members."""
        objective, nobody = server.objective, torch.empty(0, dtype=torch.int64)
        client_C = chosen(algorithm.selection, objective, t, seed, server.selection) if len(server.members) else nobody
        busy, closing = server.clock.in_flight.client_L, algorithm.closing
        drawn, seats = client_C, (getattr(closing, "concurrency", None) or len(client_C)) - len(busy)
        if closing.buffer is not None and len(server.members):
            client_C = free_clients(client_C, seats + closing.buffer - 1, server, t, seed, algorithm)
        everybody = torch.ones(len(client_C), dtype=torch.bool)  # a selection has been held to the objective
        asked_C = everybody if objective is server.members else server.members.which(client_C)
        if len(busy):
            asked_C = asked_C & ~torch.isin(client_C, busy)
        return replace(Cohort.made_of(client_C, asked_C, server, algorithm, runtime), seats=seats, drawn=drawn)

    @staticmethod
    def made_of(client_C: Tensor, asked_C: Tensor, server: Server, algorithm: Algorithm, runtime: Runtime) -> Cohort:
        """A cohort of these clients, some of whom are asked."""
        objective, shares = server.objective, algorithm.shares
        examples_C = runtime.examples(client_C)
        mean = partial(runtime.mean_examples, objective)
        share_C = shares.of(examples_C, len(objective), mean() if shares.over == "unbiased" else None)
        parts = partial(shares.parts, examples_C, len(objective), mean)
        return Cohort(client_C, asked_C, examples_C, share_C, len(objective), parts)


def free_clients(client_C: Tensor, wanted: int, server: Server, t: int, seed: int, algorithm: Algorithm) -> Tensor:
    """Asynchronous: the clients drawn that are not at work; too few of them are completed by further draws.

    So many are wanted as may begin in one step: one for each free seat, and one for each reply but the last.
    """
    busy, selection, draws = server.clock.in_flight.client_L, algorithm.selection, 1
    rest = server.objective.minus(torch.cat([busy, client_C]))
    client_C = client_C[~torch.isin(client_C, busy)]
    while int(server.members.which(client_C).sum()) < wanted and len(rest):
        more_C = chosen(selection, rest, t, rng_seed(seed, "draw again", draws), server.selection)
        if not len(more_C):
            break
        client_C, rest, draws = torch.cat([client_C, more_C]), rest.minus(more_C), draws + 1
    return client_C.sort().values
