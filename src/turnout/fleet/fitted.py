"""A model of a fleet: clients that come and go by the hour, each in its own measure; groups; outages; work.

Client m is there in a round at hour h with probability q_mh. From round to round it keeps its state with probability
r_h, else it draws a new one: there with probability (q_h - r_h q_(h-1)) / (1 - r_h), which makes the share that is
there q_h exactly. r_h is the group's persistence, or as much of it as the change of q at that hour allows:

    r_h = min(r, q_h / q_(h-1), (1 - q_h) / (1 - q_(h-1)))

The state in any round follows from the latest round before it in which a new one was drawn, so it can be asked for any
round in any order (as on_off.py does). Outages of a group, or of the fleet, are chains of their own laid over that.

Shape letters: C clients of the cohort, U clients still undecided, B rounds of a block, M clients of the log, H hours
of the season, G groups, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.fleet.groups import Groups
from turnout.fleet.outages import Outages
from turnout.fleet.sources import Sources
from turnout.rng import uniform
from turnout.world.on_off import numbers_before, up_now

BLOCK = 12  # rounds walked back at a time
EVERYONE = -1  # the outages of the whole fleet, beside those of groups


def most_kept(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """The largest probability of keeping one's state with which the share that is there can change so."""
    return np.minimum(now / before, (1 - now) / (1 - before))


@dataclass(frozen=True)
class FleetModel:
    """What was fitted (fit.py).

    there_MH       the probability q that a client is there, by hour of the season, without outages
    persistence_M  the probability r of keeping one's state
    groups         who is away together
    outages        of each group that has any; EVERYONE: of the whole fleet
    work_N         the work of the log's visits, by client; those of client m begin at from_M[m]
    """

    there_MH: np.ndarray
    persistence_M: np.ndarray
    groups: Groups
    outages: dict[int, Outages]
    work_N: np.ndarray
    from_M: np.ndarray

    @property
    def season(self) -> int:
        return self.there_MH.shape[1]

    def fraction(self, client_C: Tensor, t: int, seed: int, sources: Sources) -> Tensor:
        """The work of each client in round t."""
        source_C = sources.of(client_C, seed).numpy()
        up_C = self._there(client_C, source_C, t, seed)
        for group, outages in self.outages.items():
            if self._out(group, outages, t, seed):
                spared_C = uniform(seed, "spared", group + 1, t, ids=client_C).numpy() < outages.left
                up_C &= spared_C | ((self.groups.group_M[source_C] != group) & (group != EVERYONE))
        return torch.from_numpy(np.where(up_C, self._work(client_C, source_C, t, seed), 0.0))

    def _there(self, client_C: Tensor, source_C: np.ndarray, t: int, seed: int) -> np.ndarray:
        """Who is there but for outages: walk back to the latest round in which each drew a new state."""
        up_C = np.zeros(len(client_C), dtype=bool)
        undecided_U, last = np.arange(len(client_C)), t
        while len(undecided_U):
            u_BU = numbers_before(client_C[torch.from_numpy(undecided_U)], last, BLOCK, seed, "fitted").numpy()
            keep_BU, there_BU = self._chances(source_C[undecided_U], last)
            new_BU = u_BU >= keep_BU
            first_U = new_BU.argmax(0)
            pick = first_U, np.arange(len(undecided_U))
            drawn_U = (u_BU[pick] - keep_BU[pick]) < there_BU[pick] * (1 - keep_BU[pick])
            found_U = new_BU.any(0)
            up_C[undecided_U[found_U]] = drawn_U[found_U]
            undecided_U, last = undecided_U[~found_U], last - BLOCK
        return up_C

    def _chances(self, source_U: np.ndarray, last: int) -> tuple[np.ndarray, np.ndarray]:
        """The probabilities of keeping one's state, and of being there in a new one, in rounds last, last - 1, ..."""
        hour_B = (last - np.arange(BLOCK)) % self.season
        now_BU = self.there_MH[source_U[None, :], hour_B[:, None]]
        before_BU = self.there_MH[source_U[None, :], (hour_B[:, None] - 1) % self.season]
        keep_BU = np.minimum(self.persistence_M[source_U], most_kept(before_BU, now_BU))
        return keep_BU, (now_BU - keep_BU * before_BU) / np.maximum(1 - keep_BU, 1e-12)

    def _out(self, group: int, outages: Outages, t: int, seed: int) -> bool:
        one = torch.tensor([group + 1])
        return bool(up_now(one, t, seed, rise=outages.begin, fall=outages.end, purpose="outage"))

    def _work(self, client_C: Tensor, source_C: np.ndarray, t: int, seed: int) -> np.ndarray:
        """The work of one of the client's visits in the log, at random."""
        visits_C = self.from_M[source_C + 1] - self.from_M[source_C]
        u_C = uniform(seed, "work", t, ids=client_C).numpy()
        place_C = (self.from_M[source_C] + (u_C * visits_C).astype(np.int64)).clip(max=max(len(self.work_N) - 1, 0))
        return np.where(visits_C > 0, self.work_N[place_C], 0.0)
