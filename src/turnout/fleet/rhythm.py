"""Whether clients come by the hour of the day, or the day of the week, more than chance explains; and who comes when.

The test turns every day of the log by a random number of hours and looks whether the clients' mean days get flatter. If
the hour does not matter, a turned day is as likely as the day itself, however long clients stay. What is slower than a
day (trends, long absences) is removed first, by the mean over the day around each round. The statistic is the power of
the mean day in its first three waves, summed over clients, so that groups with opposite days do not hide each other:

    sum over waves k, days d and d' of exp(i k (s_d - s_d')) G_k[d, d'],   G_k = F_k F_k*

with F_k[d, client] the wave k of a client's day d, and s_d the turn of day d, which is 0 in the log. Only days that are
APART count, and the line through the ends of each day is removed: a client that stays over midnight makes neighbours
alike, and the two ends of a day differ, whatever the hour.

Shape letters: T rounds, S clients, D days, H rounds of a day, K waves, R random turns, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.fleet.groups import Groups
from turnout.fleet.participation_log import DAY, ParticipationLog

WAVES = 3  # a day has at most so many; a week likewise
TURNS = 1999  # random turns of the days, so the smallest chance that can be stated is 1 in 2,000
APART, LEAST_PERIODS = 3, 3  # days, or weeks, between those compared (2 in a short log), and that the test needs
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class ComesWhen:
    """When some clients come.

    group    the number of the group of clients that are away together, from 1; 0: clients in no group
    clients  how many they are
    hours    (from, to) in hours of the day, where their turnout is above the middle between its least and its most
    most, least   their turnout at the best and at the worst hour
    turnout  their turnout at each round of the day, from 0:00 on
    """

    group: int
    clients: int
    hours: tuple[tuple[float, float], ...]
    most: float
    least: float
    turnout: tuple[float, ...] = ()

    def name(self, all_clients: int) -> str:
        return "all" if self.clients == all_clients else f"group {self.group}" if self.group else "others"

    def words(self, all_clients: int) -> str:
        """
        >>> ComesWhen(2, 12, ((22.0, 5.0),), 0.8, 0.1).words(40)
        'group 2, 12 clients: 22 to 05 h (turnout 80% at best, 10% at worst)'
        """
        who = "all" if self.clients == all_clients else f"group {self.group}," if self.group else "the other"
        spans = " and ".join(f"{_clock(begin)} to {_clock(end)}" for begin, end in self.hours)
        ends = f"turnout {self.most:.0%} at best, {self.least:.0%} at worst"
        return f"{who} {self.clients:,} clients: {spans} h ({ends})"


def _clock(hour: float) -> str:
    minutes = round(hour % 24 * 60)
    return f"{minutes // 60:02}" + (f":{minutes % 60:02}" if minutes % 60 else "")


def rhythm_chance(came_TS: np.ndarray, period: int) -> float:
    """The chance of so strong a rhythm with this period, in rounds, if there is none; 1 if the log is too short.

    `came_TS`: the share of the rounds in which a client came, NaN where it was not asked.
    """
    periods = len(came_TS) // period
    if period < 2 or periods < LEAST_PERIODS or float(period) ** (periods - 1) < TURNS / 10:
        return 1.0
    left_DHS = _without_slow_changes(came_TS, period)[: periods * period].reshape(periods, period, -1)
    edge = max(period // 8, 1)
    first_DS, last_DS = left_DHS[:, :edge].mean(1)[:, None], left_DHS[:, -edge:].mean(1)[:, None]
    line_DHS = first_DS + (last_DS - first_DS) * np.linspace(0, 1, period)[:, None]
    wave_DHS = np.fft.fft(left_DHS - line_DHS, axis=1)
    waves = np.arange(1, min(WAVES, period // 2) + 1)
    at_D = np.arange(periods)
    apart_DD = abs(at_D[:, None] - at_D) >= (APART if periods > 2 * APART else 2)
    gram_KDD = np.stack([wave_DHS[:, k] @ wave_DHS[:, k].conj().T for k in waves]) * apart_DD
    draw = np.random.default_rng(0)  # the same turns for every log, so that a diagnosis can be repeated
    turn_RD = np.concatenate([np.zeros((1, periods)), draw.integers(0, period, (TURNS, periods))])
    power_R = np.zeros(len(turn_RD))
    for k, gram_DD in zip(waves, gram_KDD, strict=True):
        factor_RD = np.exp(2j * np.pi * k * turn_RD / period)
        power_R += np.einsum("rd,de,re->r", factor_RD, gram_DD, factor_RD.conj(), optimize=True).real
    return float((power_R >= power_R[0] - 1e-9 * abs(power_R[0])).mean())


def _without_slow_changes(came_TS: np.ndarray, period: int) -> np.ndarray:
    """Each client minus its mean over the period around each round, 0 where it was not asked."""
    asked_TS = ~np.isnan(came_TS)
    came_TS = np.where(asked_TS, came_TS, 0.0)
    weight = np.ones(period + 1 - period % 2)  # an odd number of rounds; with an even period the ends count half
    if period % 2 == 0:
        weight[[0, -1]] = 0.5
    half = len(weight) // 2

    def around(value_TS: np.ndarray) -> np.ndarray:
        padded = np.pad(value_TS, ((half, half), (0, 0)))
        total = np.pad(padded.cumsum(0), ((1, 0), (0, 0)))
        sums: np.ndarray = total[len(weight) :] - total[: -len(weight)]
        if period % 2 == 0:
            sums = sums - (padded[: len(value_TS)] + padded[2 * half :]) / 2
        return sums

    mean_TS = around(came_TS) / np.maximum(around(asked_TS.astype(np.float64)), 0.5)
    return np.where(asked_TS, came_TS - mean_TS, 0.0)


def who_comes_when(log: ParticipationLog, groups: Groups, rhythmic_G: list[bool]) -> tuple[ComesWhen, ...]:
    """The hours of each group that has a rhythm; the last place of `rhythmic_G` is for the clients in no group."""
    day = log.rounds_a_day or 1
    wide = groups.count + 1
    group_M = groups.place_M
    begin = 0.0 if log.start_T is None or not log.is_calendar else float(log.start_T[0]) % DAY
    position_T = np.arange(log.rounds) % day
    up_N = log.work_N > 0
    cell_N = position_T[log.round_N[up_N]] * wide + group_M[log.client_N[up_N]]
    came_HG = np.bincount(cell_N, minlength=day * wide).reshape(day, wide)
    asked_HG = np.zeros((day, wide))
    np.add.at(asked_HG, position_T, asked_by_group(log, group_M, wide))
    found = []
    for g in range(wide):
        size = int((group_M == g).sum())
        if not size or not rhythmic_G[g]:
            continue
        turnout_H = _smoothed(came_HG[:, g], max(day // 12, 1)) / np.maximum(
            _smoothed(asked_HG[:, g], max(day // 12, 1)), 1
        )
        most, least = float(turnout_H.max()), float(turnout_H.min())
        high_H = turnout_H > (most + least) / 2
        hours = tuple(
            ((begin / 3600 + 24 * a / day) % 24, (begin / 3600 + 24 * b / day) % 24) for a, b in _arcs(high_H)
        )
        from_midnight_H = np.roll(turnout_H, round(begin / DAY * day))
        found.append(
            ComesWhen(0 if g == groups.count else g + 1, size, hours, most, least, tuple(from_midnight_H.tolist()))
        )
    return tuple(found)


def asked_by_group(log: ParticipationLog, group_M: np.ndarray, wide: int) -> np.ndarray:
    """How many clients of each group were asked in each round [T, G]."""
    if log.missing == "not-asked" and wide == 1:
        return np.diff(log.first_row_T)[:, None]
    if log.missing == "not-asked":
        cell_N = log.round_N.astype(np.int64) * wide + group_M[log.client_N]
        return np.bincount(cell_N, minlength=log.rounds * wide).reshape(log.rounds, wide)
    change_TG = np.zeros((log.rounds + 1, wide), np.int64)
    np.add.at(change_TG, (log.joined_M, group_M), 1)
    np.add.at(change_TG, (log.left_M, group_M), -1)
    return change_TG.cumsum(0)[:-1]


def _smoothed(count_H: np.ndarray, width: int) -> np.ndarray:
    """The sum over `width` rounds to either side, around the clock."""
    return np.sum([np.roll(count_H, shift) for shift in range(-width, width + 1)], axis=0)


def _arcs(high_H: np.ndarray) -> list[tuple[int, int]]:
    """The stretches that are true, around the clock, as (first, after the last).

    >>> _arcs(np.array([True, False, True, True, False, True]))
    [(2, 4), (5, 7)]
    """
    begins = np.flatnonzero(high_H & ~np.roll(high_H, 1))
    return [(int(b), int(b + np.argmin(np.roll(high_H, -b)))) for b in begins]
