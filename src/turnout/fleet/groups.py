"""Groups of clients that are away together more than chance and the hour explain.

A client's series is its presence minus its own mean and minus the fleet's turnout of the round, which removes what all
clients share (a night, an outage of the server). Series are clustered by correlation (spherical k-means). The number of
groups is chosen on other rounds than those that made them: the number for which clients are most like the mean of the
others in their group.

Shape letters: T rounds, S sampled clients, M clients of the log, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.fleet.log_statistics import presence
from turnout.fleet.participation_log import ParticipationLog

MOST_GROUPS = 8
SMALLEST = 3  # clients of a group
LIKE = 0.1  # the least correlation with the mean of the others, on other rounds, for a group to be one
SWEEPS = 25


@dataclass(frozen=True)
class Groups:
    """Groups of clients, the largest first.

    group_M  each client's group, -1 for none
    like_G   the mean correlation of a group's clients with the mean of the others, on rounds that did not make the
             groups
    """

    group_M: np.ndarray
    like_G: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        return len(self.like_G)

    @property
    def place_M(self) -> np.ndarray:
        """Each client's group as a place in an array; clients in none have the last place, `count`."""
        return np.where(self.group_M < 0, self.count, self.group_M)

    def members(self, group: int) -> np.ndarray:
        return np.flatnonzero(self.group_M == group)


def away_together(log: ParticipationLog) -> Groups:
    """The groups of a log."""
    none = Groups(np.full(log.clients, -1))
    series_TS = _series(presence(log))
    length = log.rounds_a_day or max(len(series_TS) // 20, 1)
    part_T = np.arange(len(series_TS)) // length % 2 == 0  # every other day makes groups, the others judge them
    if series_TS.shape[1] < 2 * SMALLEST or part_T.all():
        return none
    tried = []
    for count in range(2, MOST_GROUPS + 1):
        group_S = _clusters(series_TS[part_T], count)
        likes = [_likeness(series_TS[~part_T], group_S, g) * (group_S == g).sum() for g in range(count)]
        tried.append(float(np.sum(likes) / series_TS.shape[1]))
    count = 2 + int(np.argmax(tried))
    if tried[count - 2] < LIKE:
        return none
    group_S = _clusters(series_TS, count)
    like_G = {g: _likeness(series_TS[~part_T], group_S, g) for g in range(count)}
    kept = [g for g in range(count) if (group_S == g).sum() >= SMALLEST and like_G[g] >= LIKE]
    if not kept:
        return none
    centre_TG = np.stack([series_TS[:, group_S == g].mean(1) for g in kept], axis=1)
    group_M = _assigned(log, centre_TG)
    size_G = np.bincount(group_M[group_M >= 0], minlength=len(kept))
    order = [int(g) for g in np.argsort(-size_G, kind="stable") if size_G[g] >= SMALLEST]
    place_G = np.full(len(kept) + 1, -1)  # the last is for clients that are in none already
    place_G[order] = np.arange(len(order))
    return Groups(place_G[group_M], tuple(like_G[kept[g]] for g in order))


def _series(work_TS: np.ndarray) -> np.ndarray:
    """Presence minus the client's mean and the round's, scaled to 1; 0 where a client was not asked."""
    asked_TS = ~np.isnan(work_TS)
    came_TS = (asked_TS & (np.nan_to_num(work_TS) > 0)).astype(np.float64)
    mean_S = came_TS.sum(0) / np.maximum(asked_TS.sum(0), 1)
    round_T = came_TS.sum(1) / np.maximum(asked_TS.sum(1), 1) - came_TS.sum() / max(asked_TS.sum(), 1)
    left_TS = np.where(asked_TS, came_TS - mean_S - round_T[:, None], 0.0)
    return left_TS / np.maximum(np.sqrt((left_TS**2).sum(0) / np.maximum(asked_TS.sum(0), 1)), 1e-9)


def _clusters(series_TS: np.ndarray, count: int) -> np.ndarray:
    """Spherical k-means; the first centre is the client most like all others, each further one the least like those."""
    unit_TS = series_TS / np.maximum(np.linalg.norm(series_TS, axis=0), 1e-9)
    like_SS = unit_TS.T @ unit_TS
    chosen = [int(np.abs(like_SS).sum(0).argmax())]
    while len(chosen) < count:
        chosen.append(int(like_SS[chosen].max(0).argmin()))
    centre_TG, group_S = unit_TS[:, chosen], np.zeros(unit_TS.shape[1], np.int64)
    for _ in range(SWEEPS):
        before_S, group_S = group_S, (unit_TS.T @ centre_TG).argmax(1)
        if (before_S == group_S).all():
            break
        sums_TG = np.stack([unit_TS[:, group_S == g].sum(1) for g in range(count)], axis=1)
        centre_TG = sums_TG / np.maximum(np.linalg.norm(sums_TG, axis=0), 1e-9)
    return group_S


def _likeness(series_TS: np.ndarray, group_S: np.ndarray, group: int) -> float:
    """The mean correlation of a group's clients with the mean of the others in it."""
    mine_Ts = series_TS[:, group_S == group]
    if mine_Ts.shape[1] < 2:
        return 0.0
    others_Ts = mine_Ts.sum(1, keepdims=True) - mine_Ts
    norm_s = np.linalg.norm(mine_Ts, axis=0) * np.linalg.norm(others_Ts, axis=0)
    return float(((mine_Ts * others_Ts).sum(0) / np.maximum(norm_s, 1e-9)).mean())


def _assigned(log: ParticipationLog, centre_TG: np.ndarray) -> np.ndarray:
    """The group whose mean each client of the log is most like; -1 if it is like none."""
    rounds = len(centre_TG)
    seen_N = log.round_N < rounds
    rows = log.client_N[seen_N], log.round_N[seen_N], (log.work_N[seen_N] > 0).astype(np.float64)
    came_M, asked_M = _sums(log, rows, np.ones(rounds))
    mean_M = came_M / np.maximum(asked_M, 1)
    spread_M = np.sqrt(mean_M * (1 - mean_M) * np.maximum(asked_M, 1))
    like_GM = np.zeros((centre_TG.shape[1], log.clients))
    for g, centre_T in enumerate(centre_TG.T):
        centred_T = centre_T - centre_T.mean()
        dot_M, all_M = _sums(log, rows, centred_T)
        scale_M = spread_M * np.sqrt((centred_T**2).mean())
        like_GM[g] = (dot_M - mean_M * all_M) / np.maximum(scale_M * np.sqrt(np.maximum(asked_M, 1)), 1e-9)
    return np.where(like_GM.max(0) > LIKE / 2, like_GM.argmax(0), -1)


def _sums(
    log: ParticipationLog, rows: tuple[np.ndarray, np.ndarray, np.ndarray], value_T: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each client, the sum of a series over the rounds in which it came, and over those in which it was asked."""
    client_n, round_n, came_n = rows
    came_M = np.bincount(client_n, value_T[round_n] * came_n, log.clients)
    if log.missing == "not-asked":
        return came_M, np.bincount(client_n, value_T[round_n], log.clients)
    until_T = np.concatenate([[0.0], value_T.cumsum()])
    limit = len(value_T)
    return came_M, until_T[np.minimum(log.left_M, limit)] - until_T[np.minimum(log.joined_M, limit)]
