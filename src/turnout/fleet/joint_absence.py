"""Outages: clients that are away at the same time more than their own habits explain.

If clients come independently of each other, the history of each could as well have happened some days earlier or
later. So the log is compared with logs in which every client's series is moved by a random number of whole days (around
the end), which keeps its rate, its stays and its hours. Two things are looked for, each at half of the error:

- wide: rounds in which far fewer clients come than expected, over 1, 4 or 16 rounds. Expected is the client's own rate
  times what the hour, the weekday and a straight line of time make of the fleet's turnout.
- deep: absences of several clients that begin together and end together, each weighed by the logarithm of how many
  times longer it is than the client's others.

Shape letters: T rounds, S clients, W widths, R moved logs, E absences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from turnout.fleet.log_statistics import share

MOVES = 999  # moved logs that the log is compared with
WIDTHS = (1, 4, 16)  # rounds
MOST_CLIENTS = 120  # that are looked at, evenly taken
MOST_ABSENCES = 250  # that are compared in pairs, the longest
MOST_OUTAGES = 20
LEAST_ROUNDS = 12
LONGER = 4.0  # times a client's usual absence, from which one counts
FEWEST = 3  # clients of an outage, but for smaller fleets


@dataclass(frozen=True)
class JointAbsence:
    """An outage.

    begin, end  the first round of it, and the first after it
    clients     places of the clients that were out; None: the whole fleet
    """

    begin: int
    end: int
    clients: tuple[int, ...] | None = None


def joint_absences(came_TS: np.ndarray, group_S: np.ndarray, day: int, error: float) -> list[JointAbsence]:
    """The outages of a log, found by chance with probability `error` at most.

    `came_TS`: the share of the rounds in which a client came, NaN where it was not asked; `group_S`: its group; a group
    that is well during an outage is not part of it. `day`: rounds of a day, or 1.
    """
    rounds = len(came_TS) // day * day  # whole days, so that a moved client keeps its hours
    if rounds // day < 3 or rounds < LEAST_ROUNDS or came_TS.shape[1] < 2:
        return []
    chosen_S = np.unique(np.linspace(0, came_TS.shape[1] - 1, min(MOST_CLIENTS, came_TS.shape[1])).astype(np.int64))
    came_TS, group_S = came_TS[:rounds, chosen_S], group_S[chosen_S]
    expected_TS = _expected(came_TS, day)
    draw = np.random.default_rng(0)  # the same moves for every log, so that a diagnosis can be repeated
    move_RS = draw.integers(0, rounds // day, (MOVES, came_TS.shape[1])) * day
    wide = [
        JointAbsence(begin, end, _out(came_TS, expected_TS, group_S, slice(begin, end)))
        for begin, end in _wide(came_TS, expected_TS, move_RS, error / 2)
    ]
    out_T = np.zeros(rounds, dtype=bool)
    for one in wide:
        out_T[one.begin : one.end] = True
    found = wide + _deep(came_TS, expected_TS, out_T, move_RS, error / 2)
    named = [replace(one, clients=one.clients and tuple(int(chosen_S[s]) for s in one.clients)) for one in found]
    return sorted(named, key=lambda one: one.begin)


def _out(came_TS: np.ndarray, expected_TS: np.ndarray, group_S: np.ndarray, rounds: slice) -> tuple[int, ...] | None:
    """The clients of the groups that are out in these rounds; None if no group is well."""
    came_S = np.nansum(came_TS[rounds], 0)
    expected_S = np.where(np.isnan(came_TS[rounds]), 0.0, expected_TS[rounds]).sum(0)
    well = [
        g
        for g in np.unique(group_S)
        if expected_S[group_S == g].sum() >= max(2.0, 2 * (expected_S - came_S)[group_S == g].sum())
    ]
    return tuple(np.flatnonzero(~np.isin(group_S, well)).tolist()) if well else None


def _expected(came_TS: np.ndarray, day: int) -> np.ndarray:
    """The share of clients' rounds that is expected: a client's rate x the fleet's hour, weekday and line of time."""
    asked_TS = ~np.isnan(came_TS)
    rate_S = np.nansum(came_TS, 0) / np.maximum(asked_TS.sum(0), 1)
    fleet_T = share(np.nansum(came_TS, 1), (asked_TS * rate_S).sum(1))  # 1: as usual
    fleet_T = np.where(np.isnan(fleet_T), 1.0, fleet_T)
    t_T = np.arange(len(came_TS))
    factor_T: np.ndarray = np.polyval(np.polyfit(t_T, fleet_T, 1), t_T)
    places = [t_T % day] + ([t_T // day % 7] if day > 1 and len(t_T) >= 14 * day else [])
    for place_T in places if day > 1 else []:
        ratio = np.bincount(place_T, fleet_T) / np.maximum(np.bincount(place_T, factor_T), 1e-9)
        factor_T = factor_T * ratio[place_T]
    return np.clip(rate_S * factor_T[:, None], 0.002, 0.998)


def _wide(came_TS: np.ndarray, expected_TS: np.ndarray, move_RS: np.ndarray, error: float) -> list[tuple[int, int]]:
    """The rounds, as (first, after the last), in which far fewer clients come than expected."""
    rounds = len(came_TS)
    asked_TS = ~np.isnan(came_TS)
    left_TS = np.where(asked_TS, came_TS - expected_TS, 0.0)
    twice_ST = np.ascontiguousarray(np.concatenate([left_TS, left_TS]).T)
    widths = [w for w in WIDTHS if w <= rounds // 4]

    def sums(total_T: np.ndarray) -> np.ndarray:
        until = np.concatenate([[0.0], np.concatenate([total_T, total_T[: max(widths)]]).cumsum()])
        return np.stack([until[w : w + rounds] - until[:rounds] for w in widths])

    lowest_RW = np.empty((len(move_RS), len(widths)))
    spread_W = np.zeros(len(widths))
    for r, move_S in enumerate(move_RS):
        total_T = np.zeros(rounds)
        for series, by in zip(twice_ST, move_S, strict=True):
            total_T += series[by : by + rounds]
        sums_WT = sums(total_T)
        lowest_RW[r] = sums_WT.min(1)
        spread_W += (sums_WT**2).mean(1)
    spread_W = np.maximum(np.sqrt(spread_W / len(move_RS)), 1e-9)
    lowest_R = np.sort((lowest_RW / spread_W).min(1))
    limit = lowest_R[max(int(error * (len(move_RS) + 1)) - 1, 0)]  # a lower value has a chance of at most `error`
    low_WT = sums(left_TS.sum(1)) / spread_W[:, None] < limit
    came_T, expected_T = np.nansum(came_TS, 1), (asked_TS * expected_TS).sum(1)
    few_T = came_T < expected_T / 2
    sure_T = np.zeros(rounds, dtype=bool)
    for width, low_T in zip(widths, low_WT, strict=True):
        for begin in np.flatnonzero(low_T):
            if begin + width <= rounds and few_T[begin : begin + width].all():
                sure_T[begin : begin + width] = True
    return [(begin, end) for begin, end in stretches(few_T) if sure_T[begin:end].any()]


def stretches(true_T: np.ndarray) -> list[tuple[int, int]]:
    """The stretches of true values, as (first, after the last).

    >>> stretches(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edge = np.diff(np.concatenate([[0], true_T.astype(np.int8), [0]]))
    return [(int(b), int(e)) for b, e in zip(np.flatnonzero(edge == 1), np.flatnonzero(edge == -1), strict=True)]


def _deep(
    came_TS: np.ndarray, expected_TS: np.ndarray, out_T: np.ndarray, move_RS: np.ndarray, error: float
) -> list[JointAbsence]:
    """The long absences of several clients that begin and end together."""
    rounds, clients = came_TS.shape
    absence_E4 = _long_absences(came_TS, expected_TS, out_T)
    if not len(absence_E4):
        return []
    kept = np.argsort(-absence_E4[:, 3])[:MOST_ABSENCES]
    client_E, begin_E, end_E = absence_E4[kept, :3].T.astype(np.int64)
    weight_E = absence_E4[kept, 3]
    length_E = end_E - begin_E
    near_E = np.maximum(length_E // 10, 2)
    near_EE = np.minimum(near_E[:, None], near_E)
    alike_EE = (abs(length_E[:, None] - length_E) <= 2 * near_EE) & (client_E[:, None] != client_E)
    np.fill_diagonal(alike_EE, True)

    def together(begin_E: np.ndarray) -> np.ndarray:
        """Which absences begin, and end, together with each [E, E]."""
        apart_EE = abs(begin_E[:, None] - begin_E)
        apart_EE = np.minimum(apart_EE, rounds - apart_EE)
        return alike_EE & (apart_EE <= near_EE)

    most_R = np.sort([float((together((begin_E - move_S[client_E]) % rounds) @ weight_E).max()) for move_S in move_RS])
    limit = most_R[-max(int(error * (len(move_RS) + 1)), 1)]
    fewest = min(FEWEST, clients)
    together_EE, alive_E = together(begin_E), np.ones(len(weight_E), dtype=bool)
    found: list[JointAbsence] = []
    while len(found) < MOST_OUTAGES:
        score_E = np.where(alive_E, (together_EE & alive_E) @ weight_E, 0.0)
        best = int(score_E.argmax())
        if score_E[best] <= limit:
            break
        mine_E = together_EE[best] & alive_E
        if len(set(client_E[mine_E])) >= fewest:
            begin, end = (int(np.median(edge_E[mine_E])) for edge_E in (begin_E, end_E))
            found.append(JointAbsence(begin, end, tuple(sorted({int(s) for s in client_E[mine_E]}))))
        alive_E &= ~mine_E
    return found


def _long_absences(came_TS: np.ndarray, expected_TS: np.ndarray, out_T: np.ndarray) -> np.ndarray:
    """Absences LONGER than usual for their client: (client, first round, first round after it, weight) [E, 4].

    The length of an absence is the visits that would be expected in it. Where the fleet is out, time stands still.
    """
    found = []
    for s in range(came_TS.shape[1]):
        asked_T = ~np.isnan(came_TS[:, s])
        visit_T = np.where(asked_T & ~out_T, -np.log1p(-expected_TS[:, s]), 0.0)
        until_T = np.concatenate([[0.0], visit_T.cumsum()])
        member = np.flatnonzero(asked_T)
        if not len(member):
            continue
        away_T = ~(np.nan_to_num(came_TS[:, s]) > 0)
        away_T[: member[0]] = away_T[member[-1] + 1 :] = False
        runs = stretches(away_T)
        length = np.array([until_T[e] - until_T[b] for b, e in runs])
        if not len(length) or not length.any():
            continue
        others = np.sort(length)[:-1]
        usual = float(np.median(others)) if len(others) else float(visit_T[member].mean())
        for (b, e), long in zip(runs, length, strict=True):
            if long > LONGER * max(usual, 1e-9):
                found.append((s, b, e, np.log(long / max(usual, 1e-9) / LONGER)))
    return np.array(found).reshape(-1, 4)
