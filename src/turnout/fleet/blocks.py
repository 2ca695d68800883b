"""Participation made of whole blocks of a log's rounds, which keeps persistence and joint absences.

A block of the run is a block of the log that begins at a random round of the same hour (and weekday, if the log covers
enough weeks). whose="fleet": the same block for all clients; whose="client": a block for each.

Shape letters: C clients of the cohort, N rows of the log, M clients of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from turnout.fleet.log_statistics import presence, runs
from turnout.fleet.participation_log import ParticipationLog
from turnout.rng import key, keys, uniform, unit
from turnout.world.turnout_log import Match

Whose = Literal["fleet", "client"]
STAND_INS = 12  # other clients tried for one that is not a member at the time
CYCLES = 5  # stays and absences of a client in a block, at least: fewer are cut too often


@dataclass(frozen=True)
class Sources:
    """Assigns a client of the log to each simulated client: itself if it is in the log, else one at random. Of every
    `logged` clients in a row each gets another one, or as often as `weight_M` says.

    logged    how many clients the log has
    match     which clients are in the log; None: none is
    weight_M  how often each client of the log is assigned, in proportion; None: equally often
    """

    logged: int
    match: Match | None = None
    weight_M: np.ndarray | None = None

    def of(self, client_C: Tensor, seed: int) -> Tensor:
        """The client of the log for each of these."""
        if self.match is None:
            return self._assigned(client_C, seed)
        own_C = torch.from_numpy(self.match.places(client_C.numpy()))
        return own_C if (own_C >= 0).all() else torch.where(own_C >= 0, own_C, self._assigned(client_C, seed))

    def _assigned(self, client_C: Tensor, seed: int) -> Tensor:
        kept: tuple[int, Tensor] | None = self.__dict__.get("_shuffled")  # the log's clients in random order, by seed
        if kept is None or kept[0] != seed:
            kept = (seed, uniform(seed, "logged", ids=torch.arange(self.logged)).argsort())
            self.__dict__["_shuffled"] = kept
        slot_C = kept[1][client_C % self.logged]
        if self.weight_M is None:
            return slot_C
        within_C = uniform(seed, "hand", ids=client_C // self.logged)
        edge_M = torch.from_numpy(self.weight_M / self.weight_M.sum()).cumsum(0)
        return torch.searchsorted(edge_M, (slot_C + within_C) / self.logged).clamp(max=self.logged - 1)


@dataclass(frozen=True)
class Blocks:
    """Draws work from blocks of a log.

    log      the log
    sources  which client of the log each client is
    length   rounds of a block
    whose    "fleet": one block for all clients; "client": one for each
    again    the number of a bootstrap log: stretches of the log, drawn with replacement; None: the log itself
    """

    log: ParticipationLog
    sources: Sources
    length: int
    whose: Whose = "fleet"
    again: int | None = None

    def fraction(self, client_C: Tensor, t: int, seed: int) -> Tensor:
        """The work of each client in round t of the run."""
        source_C = self.sources.of(client_C, seed).numpy()
        block, within = divmod(t, self.length)
        round_C = self._round(client_C, block, within, seed)
        key_N, work_N = self._by_client
        if self.log.missing == "not-asked":
            return torch.from_numpy(self._nearest(source_C, round_C))
        source_C = self._members(client_C, source_C, round_C, block, seed)
        wanted_C = source_C * np.int64(self.log.rounds) + round_C
        place_C = np.searchsorted(key_N, wanted_C).clip(max=len(key_N) - 1)
        return torch.from_numpy(np.where((source_C >= 0) & (key_N[place_C] == wanted_C), work_N[place_C], 0.0))

    def _round(self, client_C: Tensor, block: int, within: int, seed: int) -> np.ndarray:
        """The round of the log of each client; past the end of the log, whole seasons before."""
        log, season = self.log, self.log.season
        phase = block * self.length % season
        starts = (log.rounds - 1 - phase) // season + 1  # rounds of the log at this hour
        if self.whose == "fleet":
            u_C = uniform(seed, "stretch", ids=torch.tensor([block])).expand(len(client_C))
        else:
            u_C = uniform(seed, "stretch", block, ids=client_C)
        round_C = phase + season * (u_C.numpy() * starts).astype(np.int64) + within
        back = log.rounds // season * season
        past_C = round_C - log.rounds
        round_C = np.where(past_C < 0, round_C, past_C % back + log.rounds - back)
        return round_C if self.again is None else self._resampled_T[round_C]

    @cached_property
    def _resampled_T(self) -> np.ndarray:
        """The round of the log that stands at each round of the bootstrap log.

        Another log of the same fleet would have other stretches. So its place is taken by as many rounds of this one,
        in stretches of a block's length from random rounds of the same hour.
        """
        log, season = self.log, self.log.season
        at_T = np.arange(log.rounds)
        stretch_T, within_T = np.divmod(at_T, self.length)
        u_T = uniform(self.again or 0, "bootstrap", ids=torch.from_numpy(stretch_T)).numpy()
        phase_T = (at_T - within_T) % season
        starts_T = (log.rounds - 1 - phase_T) // season + 1
        back = log.rounds // season * season
        round_T = phase_T + season * (u_T * starts_T).astype(np.int64) + within_T
        return np.where(round_T < log.rounds, round_T, (round_T - log.rounds) % back + log.rounds - back)

    def _members(
        self, client_C: Tensor, source_C: np.ndarray, round_C: np.ndarray, block: int, seed: int
    ) -> np.ndarray:
        """The source of each client if it was a member in that round, else a random one that was, else -1."""
        found_C, base = source_C.copy(), key(seed, "stand-in", block)
        for attempt in range(STAND_INS + 1):
            out_C = (self.log.joined_M[found_C] > round_C) | (self.log.left_M[found_C] <= round_C)
            if not out_C.any():
                return found_C
            if attempt == STAND_INS:
                break
            other_C = unit(keys(base + attempt, client_C[torch.from_numpy(out_C)])).numpy()
            found_C[out_C] = (other_C * self.log.clients).astype(np.int64)
        return np.where(out_C, -1, found_C)

    def _nearest(self, source_C: np.ndarray, round_C: np.ndarray) -> np.ndarray:
        """The work of these clients in the nearest round in which they were asked; the earlier of two."""
        key_N, work_N = self._by_client
        wanted_C = source_C * np.int64(self.log.rounds) + round_C
        after_C = np.searchsorted(key_N, wanted_C).clip(max=len(key_N) - 1)
        before_C = (after_C - 1).clip(min=0)

        def distance(place_C: np.ndarray) -> np.ndarray:
            own_C = key_N[place_C] // self.log.rounds == source_C
            return np.where(own_C, abs(key_N[place_C] - wanted_C), 2 * self.log.rounds)

        return work_N[np.where(distance(before_C) <= distance(after_C), before_C, after_C)]

    @cached_property
    def _by_client(self) -> tuple[np.ndarray, np.ndarray]:
        """client x rounds + round of every row, sorted, and the work of each."""
        key_N = self.log.client_N.astype(np.int64) * self.log.rounds + self.log.round_N
        order_N = np.argsort(key_N, kind="stable")
        return key_N[order_N], self.log.work_N[order_N]


def block_length(log: ParticipationLog) -> int:
    """A length for blocks: several stays and absences of a client, whole days or weeks, at most half the log."""
    up_R, down_R = runs(presence(log))
    cycle = (up_R.mean() if len(up_R) else 1.0) + (down_R.mean() if len(down_R) else 1.0)
    wanted = max(CYCLES * cycle, log.rounds ** (1 / 3))
    most = max(log.rounds // 2 // log.season, 1) * log.season
    return int(min(-(-wanted // log.season) * log.season, max(most, 1)))
