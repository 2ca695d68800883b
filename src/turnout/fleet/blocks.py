"""Participation made of whole stretches of a log's rounds, so that persistence survives, and joint absences too.

Round t of the run lies in stretch t // length. A stretch of the run is a stretch of the log that begins at a random
round of the same hour (of the same weekday, where the log has weeks enough). Of the fleet: one for all clients, so
those who were away together are so again. Of a client: one for each client, so a larger fleet has no twins, and clients
are independent of each other.

Shape letters: C clients of the cohort, N rows of the log, M clients of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from turnout.fleet.fleet import Fleet
from turnout.fleet.seasons import season
from turnout.fleet.sources import Sources
from turnout.fleet.spells import runs
from turnout.fleet.statistics import presence
from turnout.rng import key, keys, uniform, unit

Whose = Literal["fleet", "client"]
STAND_INS = 12  # tried for a client that is no member at the time
CYCLES = 5  # stays and absences of a client in a stretch, at least: fewer are cut too often


@dataclass(frozen=True)
class Blocks:
    """Draws work from stretches of `length` rounds of a log."""

    fleet: Fleet
    sources: Sources
    length: int
    whose: Whose = "fleet"

    def fraction(self, client_C: Tensor, t: int, seed: int) -> Tensor:
        """The work of each client in round t of the run."""
        source_C = self.sources.of(client_C, seed).numpy()
        stretch, within = divmod(t, self.length)
        round_C = self._round(client_C, stretch, within, seed)
        if self.fleet.missing == "not-asked":
            return torch.from_numpy(self._nearest(source_C, round_C))
        source_C = self._members(client_C, source_C, round_C, stretch, seed)
        return torch.from_numpy(np.where(source_C >= 0, self._logged(source_C, round_C), 0.0))

    def _round(self, client_C: Tensor, stretch: int, within: int, seed: int) -> np.ndarray:
        """Which round of the log each client is in. Past the log's end it goes on a whole number of seasons before."""
        every = season(self.fleet)
        phase = stretch * self.length % every
        starts = (self.fleet.rounds - 1 - phase) // every + 1  # rounds of the log at this hour
        if self.whose == "fleet":
            u_C = uniform(seed, "stretch", ids=torch.tensor([stretch])).expand(len(client_C))
        else:
            u_C = uniform(seed, "stretch", stretch, ids=client_C)
        round_C = phase + every * (u_C.numpy() * starts).astype(np.int64) + within
        back = self.fleet.rounds // every * every
        past_C = round_C - self.fleet.rounds
        return np.where(past_C < 0, round_C, past_C % back + self.fleet.rounds - back)

    def _members(
        self, client_C: Tensor, source_C: np.ndarray, round_C: np.ndarray, stretch: int, seed: int
    ) -> np.ndarray:
        """The source of each client if it was a member in that round, else another that was; -1 if none is found."""
        fleet, found_C = self.fleet, source_C.copy()
        base = key(seed, "stand-in", stretch)
        for attempt in range(STAND_INS + 1):
            out_C = (fleet.joined_M[found_C] > round_C) | (fleet.left_M[found_C] <= round_C)
            if not out_C.any():
                return found_C
            if attempt == STAND_INS:
                break
            other_C = unit(keys(base + attempt, client_C[torch.from_numpy(out_C)])).numpy()
            found_C[out_C] = (other_C * fleet.clients).astype(np.int64)
        return np.where(out_C, -1, found_C)

    def _logged(self, source_C: np.ndarray, round_C: np.ndarray) -> np.ndarray:
        """The work in the log of these clients in these rounds, 0 without a row."""
        key_N, work_N = self._by_client
        wanted_C = source_C * np.int64(self.fleet.rounds) + round_C
        place_C = np.searchsorted(key_N, wanted_C).clip(max=len(key_N) - 1)
        return np.where(key_N[place_C] == wanted_C, work_N[place_C], 0.0)

    def _nearest(self, source_C: np.ndarray, round_C: np.ndarray) -> np.ndarray:
        """The work of these clients in the round nearest to these in which they were asked; the earlier of two."""
        key_N, work_N = self._by_client
        wanted_C = source_C * np.int64(self.fleet.rounds) + round_C
        after_C = np.searchsorted(key_N, wanted_C).clip(max=len(key_N) - 1)
        before_C = (after_C - 1).clip(min=0)
        far = np.int64(2) * self.fleet.rounds

        def away(place_C: np.ndarray) -> np.ndarray:
            return np.where(key_N[place_C] // self.fleet.rounds == source_C, abs(key_N[place_C] - wanted_C), far)

        return work_N[np.where(away(before_C) <= away(after_C), before_C, after_C)]

    @cached_property
    def _by_client(self) -> tuple[np.ndarray, np.ndarray]:
        """client x rounds + round of every row, sorted, and the work of each."""
        key_N = self.fleet.client_N.astype(np.int64) * self.fleet.rounds + self.fleet.round_N
        order_N = np.argsort(key_N, kind="stable")
        return key_N[order_N], self.fleet.work_N[order_N]


def stretch_length(fleet: Fleet) -> int:
    """How long stretches should be: several stays and absences of a client, whole days or weeks, at most half the log.

    A stretch cuts what a client was doing at its ends, so it must be long beside that; and several must fit into the
    log, or the same rounds come again and again.
    """
    up_R, down_R = runs(presence(fleet))
    cycle = (up_R.mean() if len(up_R) else 1.0) + (down_R.mean() if len(down_R) else 1.0)
    every = season(fleet)
    wanted = max(CYCLES * cycle, fleet.rounds ** (1 / 3))
    most = max(fleet.rounds // 2 // every, 1) * every
    return int(min(-(-wanted // every) * every, max(most, 1)))
