"""Whom the server asks in a round, and what each stands for.

Shape letters: C clients of the cohort (sorted by id).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from turnout.exchange import Runtime
from turnout.experiment import Algorithm
from turnout.parts.selection import chosen
from turnout.server.state import Server


@dataclass(frozen=True)
class Cohort:
    """Clients drawn from the objective, with their shares of it.

    `asked_C` are members; the others have left but stay in the objective: drawn, and absent. `parts` are the cohort's
    p_k in the whole objective, which are counted only if a term asks.
    """

    client_C: Tensor
    asked_C: Tensor
    examples_C: Tensor
    share_C: Tensor
    objective: int  # clients the objective is over
    parts: Callable[[], Tensor]

    @property
    def asked(self) -> Tensor:
        """The clients that are asked."""
        return self.client_C[self.asked_C]

    @staticmethod
    def of(server: Server, t: int, seed: int, algorithm: Algorithm, runtime: Runtime) -> Cohort:
        """The cohort of a round; nobody is asked where there are no members."""
        objective, shares = server.objective, algorithm.shares
        nobody = torch.empty(0, dtype=torch.int64)
        client_C = chosen(algorithm.selection, objective, t, seed, server.selection) if len(server.members) else nobody
        examples_C = runtime.examples(client_C)
        mean = partial(runtime.mean_examples, objective)
        share_C = shares.of(examples_C, len(objective), mean() if shares.over == "unbiased" else None)
        parts = partial(shares.parts, examples_C, len(objective), mean)
        return Cohort(client_C, server.members.which(client_C), examples_C, share_C, len(objective), parts)
