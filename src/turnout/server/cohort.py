"""Whom the server asks in a round, and what each stands for.

Shape letters: C clients of the cohort (sorted by id).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from turnout.exchange import Runtime
from turnout.experiment import Algorithm
from turnout.parts.selection import chosen
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
    drawn: int = 0  # how many the selection drew, those still busy included

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
        busy, drawn = server.clock.under_way.client_L, len(client_C)
        everybody = torch.ones(len(client_C), dtype=torch.bool)  # a selection has been held to the objective
        asked_C = everybody if objective is server.members else server.members.which(client_C)
        if len(busy):
            free_C = ~torch.isin(client_C, busy)
            if algorithm.closing.buffer is not None:
                client_C, asked_C, free_C = client_C[free_C], asked_C[free_C], free_C[free_C]
            asked_C = asked_C & free_C
        return Cohort.made_of(client_C, asked_C, server, algorithm, runtime, drawn)

    @staticmethod
    def made_of(
        client_C: Tensor, asked_C: Tensor, server: Server, algorithm: Algorithm, runtime: Runtime, drawn: int = 0
    ) -> Cohort:
        """A cohort of these clients, some of whom are asked."""
        objective, shares = server.objective, algorithm.shares
        examples_C = runtime.examples(client_C)
        mean = partial(runtime.mean_examples, objective)
        share_C = shares.of(examples_C, len(objective), mean() if shares.over == "unbiased" else None)
        parts = partial(shares.parts, examples_C, len(objective), mean)
        return Cohort(client_C, asked_C, examples_C, share_C, len(objective), parts, drawn)
