"""A model of a fleet and its fit to a log: clients that come and go by the hour, each at its own rate; groups; outages.

Client m is there in a round at hour h with probability q_mh. From round to round it keeps its state with probability
r_h, else it draws a new one: there with probability (q_h - r_h q_(h-1)) / (1 - r_h), which makes the share that is
there q_h exactly. r_h is the group's persistence, or as much of it as the change of q at that hour allows:

    r_h = min(r, q_h / q_(h-1), (1 - q_h) / (1 - q_(h-1)))

The state in any round follows from the latest round before it in which a new one was drawn, so any round can be asked
for in any order (as in OnOff). Outages of a group, or of the fleet, are independent chains on top of that.

The fit: q_mh = logistic(a_m + b_gh), a rate of the client's own, and a profile of its group. Both are fitted in turn
until each client's and each hour's total is the log's (maximum likelihood; differences between clients that are due to
chance are taken back). Rounds that are outages are found and removed, and the rest is fitted again. Persistence is the
correlation of a client's state with that of the round before, over the clients of a group.

A round is an outage if x < e / 2, with n asked, e expected and x there, and the chance of that is below UNLIKELY: it is
at most exp(-n KL(x/n || e/n)), the Chernoff bound of a sum of independent clients. The outage lasts as long as x <
e / 2 before and after, also at hours at which few come anyway.

Shape letters: C clients of the cohort, U clients still undecided, B rounds of a block, T rounds, M clients of the log,
H hours of the season, G groups, A or N rows, S sampled clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.fleet.blocks import Sources
from turnout.fleet.groups import Groups, away_together
from turnout.fleet.log_statistics import presence, sampled
from turnout.fleet.participation_log import ParticipationLog
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
    """The fitted model (`fit`).

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


PASSES = 3  # of finding outages and fitting the rest
SWEEPS = 12  # of Newton's method
MOST_KEPT = 0.995  # persistence: a client that never changes would have no beginning
FARTHEST, PAIRS = 8, 200  # rounds apart, and pairs of them, from which persistence is taken
UNLIKELY = 1e-3


def fit(log: ParticipationLog, groups: Groups | None = None) -> FleetModel:
    """The model of a log."""
    groups = groups or away_together(log)
    hours = log.season
    hour_T = np.arange(log.rounds) % hours
    group_M, wide = groups.place_M, groups.count + 1
    up_A = log.work_N > 0
    place_A = log.round_N[up_A].astype(np.int64) * wide + group_M[log.client_N[up_A]]
    came_TG = np.bincount(place_A, minlength=log.rounds * wide).reshape(log.rounds, wide)
    asked_TG = np.stack([np.bincount(group_M[log.asked(t)], minlength=wide) for t in range(log.rounds)])
    out_TG = np.zeros(came_TG.shape, dtype=bool)  # the last column, clients in no group, has outages of everyone only
    kept_M = np.zeros(log.clients)
    for _ in range(PASSES):
        there_MH = _there(log, groups, hour_T, out_TG, kept_M)
        there_HM = np.ascontiguousarray(there_MH.T)
        expected_TG = np.empty(came_TG.shape)
        for t in range(log.rounds):
            asked_A = log.asked(t)
            expected_TG[t] = np.bincount(group_M[asked_A], there_HM[hour_T[t], asked_A], wide)
        some_TG = (came_TG >= expected_TG / 2) & (expected_TG >= 2)  # where one group is well, not everyone is out
        everyone_T = out_rounds(came_TG.sum(1), expected_TG.sum(1), asked_TG.sum(1)) & ~some_TG.any(1)
        for g in range(groups.count):
            out_TG[:, g] = out_rounds(came_TG[:, g], expected_TG[:, g], asked_TG[:, g]) & ~everyone_T
        out_TG[:, groups.count] = False
        own_TG = out_TG.copy()
        out_TG |= everyone_T[:, None]
        kept_M = _persistence(log, groups, there_MH, hour_T, out_TG)
    chains = {EVERYONE: chain_of(everyone_T, came_TG.sum(1), expected_TG.sum(1))}
    for g in range(groups.count):
        chains[g] = chain_of(*(one_TG[~everyone_T, g] for one_TG in (own_TG, came_TG, expected_TG)))
    order_A = np.argsort(log.client_N, kind="stable")
    order_A = order_A[log.work_N[order_A] > 0]
    visits_M = np.bincount(log.client_N[order_A], minlength=log.clients)
    return FleetModel(
        there_MH=there_MH,
        persistence_M=kept_M,
        groups=groups,
        outages={group: chain for group, chain in chains.items() if chain is not None},
        work_N=log.work_N[order_A],
        from_M=np.concatenate([[0], visits_M.cumsum()]),
    )


def out_rounds(came_T: np.ndarray, expected_T: np.ndarray, asked_T: np.ndarray) -> np.ndarray:
    """Which rounds are outages.

    >>> out_rounds(np.array([9, 0, 1, 3]), np.array([8.0, 8.0, 3.0, 3.0]), np.array([20, 20, 20, 20])).tolist()
    [False, True, True, False]
    """
    asked_T = np.maximum(asked_T, 1)
    p_T = np.clip(expected_T / asked_T, 1e-9, 1 - 1e-9)
    x_T = np.minimum(came_T / asked_T, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        some_T = np.where(x_T > 0, x_T * np.log(x_T / p_T), 0.0)
        rest_T = np.where(x_T < 1, (1 - x_T) * np.log((1 - x_T) / (1 - p_T)), 0.0)
    few_T = came_T < expected_T / 2
    sure_T = few_T & (asked_T * (some_T + rest_T) > -np.log(UNLIKELY))
    stretch_T = np.cumsum(np.concatenate([[True], np.diff(few_T.astype(np.int8)) != 0])) - 1  # of few, or of enough
    out_T: np.ndarray = few_T & (np.bincount(stretch_T, sure_T) > 0)[stretch_T]
    return out_T


def chain_of(out_T: np.ndarray, came_T: np.ndarray, expected_T: np.ndarray) -> Outages | None:
    """The chain of the outages of a group; None if there are none."""
    if not out_T.any() or out_T.all():
        return None
    begins = int((np.diff(out_T.astype(np.int8)) == 1).sum()) + int(out_T[0])
    rounds = int(out_T.sum())
    left = float(came_T[out_T].sum() / max(expected_T[out_T].sum(), 1e-9))
    return Outages(begins / int((~out_T).sum()), begins / rounds, min(left, 1.0), begins, rounds)


def _there(
    log: ParticipationLog, groups: Groups, hour_T: np.ndarray, out_TG: np.ndarray, kept_M: np.ndarray
) -> np.ndarray:
    """The probability that each client is there at each hour, fitted to the rounds without outages [M, H]."""
    hours, group_M = log.season, groups.place_M
    calm_A = ~out_TG[log.round_N, group_M[log.client_N]]
    place_A = log.client_N.astype(np.int64) * hours + hour_T[log.round_N]
    wide = log.clients * hours
    came_MH = np.bincount(place_A[calm_A], log.work_N[calm_A] > 0, wide).reshape(-1, hours)
    if log.missing == "not-asked":
        asked_MH = np.bincount(place_A[calm_A], minlength=wide).reshape(-1, hours).astype(np.float64)
    else:
        asked_HM = np.zeros((hours, log.clients))
        for t in range(log.rounds):
            asked_A = log.asked(t)
            asked_HM[hour_T[t], asked_A] += ~out_TG[t, group_M[asked_A]]
        asked_MH = asked_HM.T
    there_MH = np.empty((log.clients, hours))
    for group in np.unique(groups.group_M):
        mine_M = groups.group_M == group
        there_MH[mine_M] = _logistic_fit(came_MH[mine_M], asked_MH[mine_M], kept_M[mine_M])
    return np.clip(there_MH, 1e-4, 1 - 1e-4)


def _logistic_fit(came_MH: np.ndarray, asked_MH: np.ndarray, kept_M: np.ndarray) -> np.ndarray:
    """q_mh = logistic(a_m + b_h) whose sums over hours are the clients' own turnouts, and over clients the log's.

    A client's turnout is drawn towards the mean of all as far as chance alone made it differ (empirical Bayes): the
    share of n rounds that a client with persistence r is there has a variance of about p (1 - p) / n x (1 + r) /
    (1 - r).
    """
    mean = (came_MH.sum() + 0.5) / (asked_MH.sum() + 1)
    asked_M, asked_H = asked_MH.sum(1), asked_MH.sum(0)
    share_M = (came_MH.sum(1) + mean) / (asked_M + 1)
    chance_M = share_M * (1 - share_M) / (asked_M + 1) * (1 + kept_M) / (1 - kept_M)
    real = max(float(((share_M - mean) ** 2 - chance_M).mean()), 0.0)
    goal_M = (mean + (share_M - mean) * real / np.maximum(real + chance_M, 1e-12)) * asked_M
    goal_H = (came_MH.sum(0) + 4 * mean) / (asked_H + 4) * asked_H
    a_M, b_H = np.full(len(came_MH), np.log(mean / (1 - mean))), np.zeros(came_MH.shape[1])

    def logistic() -> np.ndarray:
        y_MH: np.ndarray = 1 / (1 + np.exp(-np.clip(a_M[:, None] + b_H, -30, 30)))
        return y_MH

    def newton_step(goal: np.ndarray, axis: int) -> np.ndarray:
        q_MH = logistic()
        value_MH, slope_MH = asked_MH * q_MH, asked_MH * q_MH * (1 - q_MH)
        return np.clip((goal - value_MH.sum(axis)) / np.maximum(slope_MH.sum(axis), 1e-9), -1.0, 1.0)

    for _ in range(SWEEPS):
        a_M = a_M + newton_step(goal_M, 1)
        b_H = b_H + newton_step(goal_H, 0)
    return logistic()


def _persistence(
    log: ParticipationLog, groups: Groups, there_MH: np.ndarray, hour_T: np.ndarray, out_TG: np.ndarray
) -> np.ndarray:
    """The probability of keeping one's state from round to round, by group [M]."""
    work_TS, chosen_S = presence(log), sampled(log)
    rounds = len(work_TS)
    group_S = groups.place_M[chosen_S]
    q_TS = there_MH[chosen_S].T[hour_T[:rounds]]
    known_TS = ~np.isnan(work_TS) & ~out_TG[:rounds][:, group_S]
    left_TS = np.where(known_TS, (np.nan_to_num(work_TS) > 0) - q_TS, 0.0)
    everyone = _kept(left_TS, known_TS, q_TS)
    kept_G = np.full(groups.count + 1, everyone)
    for g in range(groups.count + 1):
        mine_S = group_S == g
        if mine_S.sum() >= 3:
            kept_G[g] = _kept(left_TS[:, mine_S], known_TS[:, mine_S], q_TS[:, mine_S], everyone)
    return kept_G[groups.place_M]


def _kept(left_TS: np.ndarray, known_TS: np.ndarray, q_TS: np.ndarray, default: float = 0.0) -> float:
    """The persistence r with which the model's covariance from round to round, sum of r_h q_(h-1) (1 - q_(h-1)), is the
    log's, by bisection. If clients are seldom asked twice in a row, from pairs of rounds that are further apart."""
    for apart in range(1, min(FARTHEST, len(left_TS) - 1) + 1):
        pairs_TS = known_TS[apart:] & known_TS[:-apart]
        if pairs_TS.sum() < PAIRS:
            continue
        goal = float((left_TS[apart:] * left_TS[:-apart])[pairs_TS].sum())
        before, now = q_TS[:-apart][pairs_TS], q_TS[apart:][pairs_TS]
        most, spread, low, high = most_kept(before, now), before * (1 - before), 0.0, MOST_KEPT
        for _ in range(30):
            middle = (low + high) / 2
            enough = float((np.minimum(middle**apart, most) * spread).sum()) > goal
            low, high = (low, middle) if enough else (middle, high)
        return low
    return default
