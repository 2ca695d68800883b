"""Which client of a log each simulated client takes after.

Shape letters: C clients of the cohort, M clients of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.rng import uniform


@dataclass(frozen=True)
class Sources:
    """Clients that the log names take after themselves (`own`); others are dealt the log's clients at random, each as
    often as the others, so that a fleet of any size has the log's mixture."""

    logged: int
    own: np.ndarray | None = None

    def of(self, client_C: Tensor, seed: int) -> Tensor:
        """The client of the log for each of these."""
        if self.own is not None:
            return torch.from_numpy(self.own)[client_C]
        return self._dealt(seed)[client_C % self.logged]

    def _dealt(self, seed: int) -> Tensor:
        """The log's clients in a random order; kept for the seed last asked for."""
        kept: tuple[int, Tensor] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] != seed:
            kept = (seed, uniform(seed, "logged", ids=torch.arange(self.logged)).argsort())
            self.__dict__["_kept"] = kept
        return kept[1]


def sources_of(labels: tuple[str, ...], names: tuple[str, ...] | None, clients: int | None) -> Sources:
    """The sources of a data set's clients: themselves where the log has every one of them, by name or by number."""
    place = {label: i for i, label in enumerate(labels)}
    wanted = names if names is not None else tuple(map(str, range(clients or 0)))
    if not wanted or len(wanted) > len(labels) or any(name not in place for name in wanted):
        return Sources(len(labels))
    return Sources(len(labels), np.array([place[name] for name in wanted], dtype=np.int64))
