"""Which client of a log each simulated client takes after.

Shape letters: C clients of the cohort, M clients of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from turnout.fleet.match import Match
from turnout.rng import uniform


@dataclass(frozen=True)
class Sources:
    """Clients that the log has (`match`) take after themselves; others are dealt the log's clients at random, so that
    a fleet of any size has the log's mixture. In every hand of as many clients as the log has, each is dealt once; with
    `weight_M`, as often as its weight says beside the mean."""

    logged: int
    match: Match | None = None
    weight_M: np.ndarray | None = None

    def of(self, client_C: Tensor, seed: int) -> Tensor:
        """The client of the log for each of these."""
        if self.match is None:
            return self._dealt(client_C, seed)
        own_C = torch.from_numpy(self.match.places(client_C.numpy()))
        return own_C if (own_C >= 0).all() else torch.where(own_C >= 0, own_C, self._dealt(client_C, seed))

    def _dealt(self, client_C: Tensor, seed: int) -> Tensor:
        slot_C = self._shuffled(seed)[client_C % self.logged]
        if self.weight_M is None:
            return slot_C
        within_C = uniform(seed, "hand", ids=client_C // self.logged)
        return torch.searchsorted(self._share_M, (slot_C + within_C) / self.logged).clamp(max=self.logged - 1)

    @cached_property
    def _share_M(self) -> Tensor:
        assert self.weight_M is not None
        return torch.from_numpy(self.weight_M / self.weight_M.sum()).cumsum(0)

    def _shuffled(self, seed: int) -> Tensor:
        """The log's clients in a random order; kept for the seed last asked for."""
        kept: tuple[int, Tensor] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] != seed:
            kept = (seed, uniform(seed, "logged", ids=torch.arange(self.logged)).argsort())
            self.__dict__["_kept"] = kept
        return kept[1]
