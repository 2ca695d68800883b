"""Fits the model of fitted.py to a log.

The probability that client m is there at hour h is logistic(a_m + b_gh): a measure of its own, and a profile of its
group. Both are fitted in turn until each client's and each hour's total is the log's (maximum likelihood; what
chance alone made clients differ by is taken back). Rounds that are outages are found, set aside, and the rest is
fitted again. Persistence is how much a client is as it was a round before, over the clients of a group.

Shape letters: T rounds, M clients, H hours of the season, G groups, A rows, S sampled clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from turnout.fleet.fitted import EVERYONE, FleetModel, most_kept
from turnout.fleet.fleet import Fleet
from turnout.fleet.groups import Groups, away_together
from turnout.fleet.outages import Outages, chain_of, out_rounds
from turnout.fleet.seasons import season
from turnout.fleet.statistics import presence, sampled

PASSES = 3  # of finding outages and fitting the rest
SWEEPS = 12  # of Newton's method
MOST_KEPT = 0.995  # persistence: a client that never changes would have no beginning
FARTHEST, PAIRS = 8, 200  # rounds apart, and pairs of them, from which persistence is taken


def fit(fleet: Fleet, groups: Groups | None = None) -> FleetModel:
    """The model of a log."""
    groups = groups or away_together(fleet)
    hours = season(fleet)
    hour_T = np.arange(fleet.rounds) % hours
    came_TG, asked_TG = _counts(fleet, groups)
    out_TG = np.zeros(came_TG.shape, dtype=bool)  # the column of those in no group has outages of everyone only
    kept_M = np.zeros(fleet.clients)
    for _ in range(PASSES):
        there_MH = _there(fleet, groups, hour_T, hours, out_TG, kept_M)
        expected_TG = _expected(fleet, groups, hour_T, there_MH)
        some_TG = (came_TG >= expected_TG / 2) & (expected_TG >= 2)  # where one group is well, not everyone is out
        everyone_T = out_rounds(came_TG.sum(1), expected_TG.sum(1), asked_TG.sum(1)) & ~some_TG.any(1)
        for g in range(groups.count):
            out_TG[:, g] = out_rounds(came_TG[:, g], expected_TG[:, g], asked_TG[:, g]) & ~everyone_T
        out_TG[:, groups.count] = False
        shown_TG = out_TG.copy()
        out_TG |= everyone_T[:, None]
        kept_M = _persistence(fleet, groups, there_MH, hour_T, out_TG)
    order_A = np.argsort(fleet.client_N, kind="stable")
    order_A = order_A[fleet.work_N[order_A] > 0]
    visits_M = np.bincount(fleet.client_N[order_A], minlength=fleet.clients)
    return FleetModel(
        there_MH=there_MH,
        persistence_M=kept_M,
        groups=groups,
        outages=_chains(shown_TG, everyone_T, came_TG, expected_TG),
        work_N=fleet.work_N[order_A],
        from_M=np.concatenate([[0], visits_M.cumsum()]),
    )


def _chains(
    out_TG: np.ndarray, everyone_T: np.ndarray, came_TG: np.ndarray, expected_TG: np.ndarray
) -> dict[int, Outages]:
    found = {EVERYONE: chain_of(everyone_T, came_TG.sum(1), expected_TG.sum(1))}
    for g in range(out_TG.shape[1] - 1):
        calm_T = ~everyone_T
        found[g] = chain_of(out_TG[calm_T, g], came_TG[calm_T, g], expected_TG[calm_T, g])
    return {group: outages for group, outages in found.items() if outages is not None}


def _in_groups(groups: Groups) -> np.ndarray:
    """Each client's group; those in none are the last, so that it is a place in an array [M]."""
    return np.where(groups.group_M < 0, groups.count, groups.group_M)


def _rounds(fleet: Fleet) -> Iterator[tuple[int, np.ndarray]]:
    for t in range(fleet.rounds):
        yield t, fleet.asked(t)


def _counts(fleet: Fleet, groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    """How many of each group came, and were asked, in each round [T, G + 1]."""
    group_M, wide = _in_groups(groups), groups.count + 1
    up_A = fleet.work_N > 0
    place_A = fleet.round_N[up_A].astype(np.int64) * wide + group_M[fleet.client_N[up_A]]
    came_TG = np.bincount(place_A, minlength=fleet.rounds * wide).reshape(fleet.rounds, wide)
    asked_TG = np.stack([np.bincount(group_M[asked_A], minlength=wide) for _, asked_A in _rounds(fleet)])
    return came_TG, asked_TG


def _expected(fleet: Fleet, groups: Groups, hour_T: np.ndarray, there_MH: np.ndarray) -> np.ndarray:
    """How many of each group should come in each round [T, G + 1]."""
    group_M, wide, there_HM = _in_groups(groups), groups.count + 1, np.ascontiguousarray(there_MH.T)
    return np.stack(
        [np.bincount(group_M[asked_A], there_HM[hour_T[t], asked_A], wide) for t, asked_A in _rounds(fleet)]
    )


def _there(
    fleet: Fleet, groups: Groups, hour_T: np.ndarray, hours: int, out_TG: np.ndarray, kept_M: np.ndarray
) -> np.ndarray:
    """The probability that each client is there at each hour, fitted to the rounds that are no outages [M, H]."""
    came_MH, asked_MH = _by_hour(fleet, groups, hour_T, hours, out_TG)
    there_MH = np.empty((fleet.clients, hours))
    for group in np.unique(groups.group_M):
        mine_M = groups.group_M == group
        there_MH[mine_M] = _logistic_fit(came_MH[mine_M], asked_MH[mine_M], kept_M[mine_M])
    return np.clip(there_MH, 1e-4, 1 - 1e-4)


def _by_hour(
    fleet: Fleet, groups: Groups, hour_T: np.ndarray, hours: int, out_TG: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How often each client came, and was asked, at each hour, outages aside [M, H]."""
    group_M = _in_groups(groups)
    calm_A = ~out_TG[fleet.round_N, group_M[fleet.client_N]]
    place_A = fleet.client_N.astype(np.int64) * hours + hour_T[fleet.round_N]
    wide = fleet.clients * hours
    came_MH = np.bincount(place_A[calm_A], fleet.work_N[calm_A] > 0, wide).reshape(-1, hours)
    if fleet.missing == "not-asked":
        return came_MH, np.bincount(place_A[calm_A], minlength=wide).reshape(-1, hours).astype(np.float64)
    asked_HM = np.zeros((hours, fleet.clients))
    for t, asked_A in _rounds(fleet):
        asked_HM[hour_T[t], asked_A] += ~out_TG[t, group_M[asked_A]]
    return came_MH, asked_HM.T


def _own_share(came_M: np.ndarray, asked_M: np.ndarray, kept_M: np.ndarray, mean: float) -> np.ndarray:
    """Each client's turnout, drawn towards the mean of all as far as chance alone made it differ (empirical Bayes).

    The share of n rounds that a client with persistence r is there has a variance of about p (1 - p) / n x
    (1 + r) / (1 - r).
    """
    share_M = (came_M + mean) / (asked_M + 1)
    chance_M = share_M * (1 - share_M) / (asked_M + 1) * (1 + kept_M) / (1 - kept_M)
    real = max(float(((share_M - mean) ** 2 - chance_M).mean()), 0.0)
    shrunk: np.ndarray = mean + (share_M - mean) * real / np.maximum(real + chance_M, 1e-12)
    return shrunk


def _logistic_fit(came_MH: np.ndarray, asked_MH: np.ndarray, kept_M: np.ndarray) -> np.ndarray:
    """q_mh = logistic(a_m + b_h) whose sums over hours are the clients' own turnouts, and over clients the log's."""
    mean = (came_MH.sum() + 0.5) / (asked_MH.sum() + 1)
    asked_M, asked_H = asked_MH.sum(1), asked_MH.sum(0)
    goal_M = _own_share(came_MH.sum(1), asked_M, kept_M, mean) * asked_M
    goal_H = (came_MH.sum(0) + 4 * mean) / (asked_H + 4) * asked_H
    a_M, b_H = np.full(len(came_MH), np.log(mean / (1 - mean))), np.zeros(came_MH.shape[1])
    for _ in range(SWEEPS):
        q_MH = _logistic(a_M[:, None] + b_H)
        a_M = a_M + _newton(goal_M, asked_MH * q_MH, asked_MH * q_MH * (1 - q_MH), 1)
        q_MH = _logistic(a_M[:, None] + b_H)
        b_H = b_H + _newton(goal_H, asked_MH * q_MH, asked_MH * q_MH * (1 - q_MH), 0)
    return _logistic(a_M[:, None] + b_H)


def _newton(goal: np.ndarray, value: np.ndarray, slope: np.ndarray, axis: int) -> np.ndarray:
    step: np.ndarray = (goal - value.sum(axis)) / np.maximum(slope.sum(axis), 1e-9)
    return np.clip(step, -1.0, 1.0)


def _logistic(x: np.ndarray) -> np.ndarray:
    y: np.ndarray = 1 / (1 + np.exp(-np.clip(x, -30, 30)))
    return y


def _persistence(
    fleet: Fleet, groups: Groups, there_MH: np.ndarray, hour_T: np.ndarray, out_TG: np.ndarray
) -> np.ndarray:
    """The probability of keeping one's state from round to round, by group [M]."""
    work_TS, chosen_S = presence(fleet), sampled(fleet)
    rounds = len(work_TS)
    group_S = _in_groups(groups)[chosen_S]
    q_TS = there_MH[chosen_S].T[hour_T[:rounds]]
    known_TS = ~np.isnan(work_TS) & ~out_TG[:rounds][:, group_S]
    left_TS = np.where(known_TS, (np.nan_to_num(work_TS) > 0) - q_TS, 0.0)
    everyone = _kept(left_TS, known_TS, q_TS)
    kept_G = np.full(groups.count + 1, everyone)
    for g in range(groups.count + 1):
        mine_S = group_S == g
        if mine_S.sum() >= 3:
            kept_G[g] = _kept(left_TS[:, mine_S], known_TS[:, mine_S], q_TS[:, mine_S], everyone)
    return kept_G[_in_groups(groups)]


def _kept(left_TS: np.ndarray, known_TS: np.ndarray, q_TS: np.ndarray, default: float = 0.0) -> float:
    """The persistence r with which the model's covariance from round to round, sum of r_h q_(h-1) (1 - q_(h-1)), is the
    log's, by bisection. Where clients are seldom asked twice in a row, from pairs that are further apart."""
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
