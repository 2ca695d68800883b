"""A model of a fleet: clients that come and go by the hour, each with its own rate; groups; outages; work.

Client m is there in a round at hour h with probability q_mh. From round to round it keeps its state with probability
r_h, else it draws a new one: there with probability (q_h - r_h q_(h-1)) / (1 - r_h), which makes the share that is
there q_h exactly. r_h is the group's persistence, or as much of it as the change of q at that hour allows:

    r_h = min(r, q_h / q_(h-1), (1 - q_h) / (1 - q_(h-1)))

The state in any round follows from the latest round before it in which a new one was drawn, so any round can be asked
for in any order (as in OnOff). Outages of a group, or of the fleet, are independent chains on top of that.

Shape letters: C clients of the cohort, U clients still undecided, B rounds of a block, M clients of the log, H hours
of the season, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.fleet.blocks import Sources
from turnout.fleet.groups import Groups
from turnout.rng import uniform
from turnout.world.participation import numbers_before, up_now

BLOCK = 12  # rounds walked back at a time
EVERYONE = -1  # the key of the outages of the whole fleet, beside those of groups


@dataclass(frozen=True)
class Outages:
    """How often a group is out, and for how long: a Markov chain.

    begin     the probability that an outage begins in a round
    end       the probability that it ends in a round
    left      the probability that a client that would have come does so during an outage
    episodes  how many outages the log has
    rounds    how many rounds of it are out
    """

    begin: float
    end: float
    left: float
    episodes: int
    rounds: int

    @property
    def share(self) -> float:
        """The share of the rounds that are out, in the long run."""
        return self.begin / (self.begin + self.end)


def most_kept(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """The largest probability of keeping one's state with which the share that is there can change from `before` to
    `now`."""
    return np.minimum(now / before, (1 - now) / (1 - before))


@dataclass(frozen=True)
class FleetModel:
    """The fitted model (fit.py).

    there_MH       the probability q that a client is there, by hour of the season, without outages
    persistence_M  the probability r of keeping one's state
    groups         clients that are away together
    outages        of each group that has any; EVERYONE: of the whole fleet
    work_N         the work of the log's visits, by client
    from_M         the place in `work_N` where each client's visits begin
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
        """The work of each client in round t: that of a random visit of its source in the log."""
        source_C = sources.of(client_C, seed).numpy()
        up_C = self._there(client_C, source_C, t, seed)
        for group, outages in self.outages.items():
            chain = torch.tensor([group + 1])
            if bool(up_now(chain, t, seed, rise=outages.begin, fall=outages.end, purpose="outage")):
                spared_C = uniform(seed, "spared", group + 1, t, ids=client_C).numpy() < outages.left
                up_C &= spared_C | ((self.groups.group_M[source_C] != group) & (group != EVERYONE))
        visits_C = self.from_M[source_C + 1] - self.from_M[source_C]
        u_C = uniform(seed, "work", t, ids=client_C).numpy()
        place_C = (self.from_M[source_C] + (u_C * visits_C).astype(np.int64)).clip(max=max(len(self.work_N) - 1, 0))
        return torch.from_numpy(np.where(up_C & (visits_C > 0), self.work_N[place_C], 0.0))

    def _there(self, client_C: Tensor, source_C: np.ndarray, t: int, seed: int) -> np.ndarray:
        """Which clients are there but for outages: walk back to the latest round in which each drew a new state."""
        up_C = np.zeros(len(client_C), dtype=bool)
        undecided_U, last = np.arange(len(client_C)), t
        while len(undecided_U):
            u_BU = numbers_before(client_C[torch.from_numpy(undecided_U)], last, BLOCK, seed, "fitted").numpy()
            source_U = source_C[undecided_U]
            hour_B = (last - np.arange(BLOCK)) % self.season
            now_BU = self.there_MH[source_U[None, :], hour_B[:, None]]
            before_BU = self.there_MH[source_U[None, :], (hour_B[:, None] - 1) % self.season]
            keep_BU = np.minimum(self.persistence_M[source_U], most_kept(before_BU, now_BU))
            there_BU = (now_BU - keep_BU * before_BU) / np.maximum(1 - keep_BU, 1e-12)  # in a new state
            new_BU = u_BU >= keep_BU
            pick = new_BU.argmax(0), np.arange(len(undecided_U))
            drawn_U = (u_BU[pick] - keep_BU[pick]) < there_BU[pick] * (1 - keep_BU[pick])
            found_U = new_BU.any(0)
            up_C[undecided_U[found_U]] = drawn_U[found_U]
            undecided_U, last = undecided_U[~found_U], last - BLOCK
        return up_C
