"""What stands out in a fleet's log: outages, a trend, a rhythm, labels that go with turnout, rounds without clients.

Outages, trend, rhythm by day and by week, and labels are tested, each with an error of ERROR: a log of a fleet whose
clients come independently of each other, each at its own constant rate and for as long as it likes, gets any of these
findings with a probability of at most 5 x ERROR. Outages are set aside before the other tests.

Shape letters: T rounds (joined together where there are very many), S sampled clients, M clients, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from turnout.fleet.groups import Groups
from turnout.fleet.joint_absence import JointAbsence, joint_absences
from turnout.fleet.log_statistics import ROUNDS, sampled, share
from turnout.fleet.participation_log import DAY, ParticipationLog
from turnout.fleet.rhythm import WEEKDAYS, ComesWhen, rhythm_chance, who_comes_when
from turnout.running.charts.units import duration
from turnout.statistics import t_below

Kind = Literal["outage", "trend", "rhythm", "labels", "empty rounds", "hardly trains"]

ERROR = 0.005  # of each test
LEAST_CHANGE = 0.05  # of the turnout, that is worth a warning
BATCHES, FEWEST_BATCHES = 6, 3  # parts of a third whose means are compared
SHUFFLES = 1999  # of the labels
FEW, MOSTLY = 2, 0.9  # a round trains if FEW clients come; a fleet should have MOSTLY rounds that do
HARDLY_TRAINS = 0.5  # share of rounds that train, below which the fleet hardly does
LENGTHS = (900.0, 1800.0, *(3600.0 * h for h in (1, 2, 3, 4, 6, 8, 12)), DAY, 2 * DAY, 4 * DAY, 7 * DAY)
NAMED = 6  # clients of a list


@dataclass(frozen=True)
class Finding:
    """Something that stands out.

    kind    what it is
    words   in a sentence
    rounds  (first, after the last) of an outage, in rounds of the log
    """

    kind: Kind
    words: str
    rounds: tuple[int, int] | None = None


@dataclass(frozen=True)
class Trend:
    """The turnout in the first and the last third of a log, and the chance of such a difference without a trend."""

    first: float
    last: float
    chance: float


def find(
    log: ParticipationLog, groups: Groups, came_T: np.ndarray, asked_T: np.ndarray
) -> tuple[tuple[Finding, ...], tuple[ComesWhen, ...]]:
    """The findings of a log, the gravest first; and who comes when, if there is a daily rhythm.

    `came_T`, `asked_T`: how many clients came and were asked in each round.
    """
    together = _rounds_together(log)
    day = max((log.rounds_a_day or 1) // together, 1)
    came_TS = shares_of_rounds(log, together)
    chosen_S = sampled(log)
    group_S = groups.place_M[chosen_S]
    outages = joint_absences(came_TS, group_S, day, ERROR)
    for one in outages:
        columns = slice(None) if one.clients is None else list(one.clients)
        came_TS[one.begin : one.end, columns] = np.nan
    findings = [*_hardly_trains(log, came_T)]
    findings += [_outage(log, one, together, [log.names[chosen_S[s]] for s in one.clients or ()]) for one in outages]
    findings += [*_empty_rounds(came_T, asked_T)]
    week = 7 * day if log.season == 7 * (log.rounds_a_day or 0) else 0
    if trend := trend_of(came_TS, week or day):
        findings.append(_trend(log, trend))
    daily = day > 1 and rhythm_chance(came_TS, day) <= ERROR
    when: tuple[ComesWhen, ...] = ()
    if daily:
        own = [rhythm_chance(came_TS[:, group_S == g], day) <= 10 * ERROR for g in range(groups.count + 1)]
        when = who_comes_when(log, groups, own)
        known = "" if log.is_calendar else " after the log's beginning"
        listed = "; ".join(one.words(log.clients) for one in when)
        findings.append(Finding("rhythm", f"Clients come by the hour of the day{known}: {listed}."))
    if week and rhythm_chance(_by_day(came_TS, day), 7) <= ERROR:
        findings.append(Finding("rhythm", f"Clients come by the day of the week{_weekdays(log, came_T, asked_T)}."))
    if log.label_M is not None and (words := _labels(log)):
        findings.append(Finding("labels", words))
    return tuple(findings), when


def _rounds_together(log: ParticipationLog) -> int:
    """How many rounds are joined so that at most ROUNDS are left; they divide a day if rounds do."""
    least = -(-log.rounds // ROUNDS)
    day = log.rounds_a_day
    return least if day is None else next((k for k in range(least, day) if day % k == 0), day)


def shares_of_rounds(log: ParticipationLog, together: int = 1) -> np.ndarray:
    """For sampled clients the share of every `together` rounds in which each came [T, S]; NaN: it was never asked."""
    chosen_S = sampled(log)
    place_M = np.full(log.clients, -1, np.int32)
    place_M[chosen_S] = np.arange(len(chosen_S))
    row_n = np.flatnonzero(place_M[log.client_N] >= 0)
    round_n, place_n, up_n = log.round_N[row_n] // together, place_M[log.client_N[row_n]], log.work_N[row_n] > 0
    wide, rounds = len(chosen_S), -(-log.rounds // together)
    cell_n = round_n.astype(np.int64) * wide + place_n
    came_TS = np.bincount(cell_n, up_n, rounds * wide).reshape(rounds, wide)
    if log.missing == "not-asked":
        return share(came_TS, np.bincount(cell_n, minlength=rounds * wide).reshape(rounds, wide))
    begin_T = np.arange(rounds)[:, None] * together
    until_TS = np.minimum(begin_T + together, log.left_M[chosen_S])
    return share(came_TS, np.maximum(until_TS - np.maximum(begin_T, log.joined_M[chosen_S]), 0))


def _by_day(came_TS: np.ndarray, day: int) -> np.ndarray:
    days = len(came_TS) // day
    asked_TS = ~np.isnan(came_TS[: days * day])
    came = np.where(asked_TS, came_TS[: days * day], 0.0).reshape(days, day, -1).sum(1)
    return share(came, asked_TS.reshape(days, day, -1).sum(1))


def trend_of(came_TS: np.ndarray, season: int = 1) -> Trend | None:
    """The trend of a log; None if there is none, or the log is too short to tell.

    The series is the mean over clients of what they came more than their own mean, minus the mean of the hour. The
    means of six parts of the first third are compared with those of the last third (Welch's test); a part is at least
    four times as long as what happens in a round lasts.
    """
    asked_TS = ~np.isnan(came_TS)
    rate_S = np.nansum(came_TS, 0) / np.maximum(asked_TS.sum(0), 1)
    series_T = share(np.where(asked_TS, came_TS - rate_S, 0.0).sum(1), asked_TS.sum(1))
    known_T = ~np.isnan(series_T)
    if season > 1 and len(series_T) >= 2 * season:
        place_T = np.arange(len(series_T)) % season
        mean = np.bincount(place_T[known_T], series_T[known_T], season)
        series_T = series_T - (mean / np.maximum(np.bincount(place_T[known_T], minlength=season), 1))[place_T]
    third = len(series_T) // 3
    ends = [np.flatnonzero(known_T[:third]), len(series_T) - third + np.flatnonzero(known_T[len(series_T) - third :])]
    if min(map(len, ends)) < FEWEST_BATCHES:
        return None
    lasts = max(_lasts(series_T[rounds]) for rounds in ends)
    batches = int(min(BATCHES, min(map(len, ends)) // max(4 * lasts, 1)))
    if batches < FEWEST_BATCHES:
        return None
    means = [np.array([series_T[part].mean() for part in np.array_split(rounds, batches)]) for rounds in ends]
    change = float(means[1].mean() - means[0].mean())
    error = math.sqrt(sum(float(mean.var(ddof=1)) for mean in means) / batches)
    chance = 2 * (1 - t_below(abs(change) / max(error, 1e-12), batches - 1))  # the fewest degrees of freedom of Welch's
    if chance > ERROR or abs(change) < LEAST_CHANGE:
        return None
    turnout = [float(np.nansum(came_TS[r]) / max(asked_TS[r].sum(), 1)) for r in (slice(third), slice(-third, None))]
    return Trend(turnout[0], turnout[1], chance)


def _lasts(series_t: np.ndarray) -> float:
    """For how many rounds a deviation from a straight line lasts: (1 + r) / (1 - r), with r from round to round."""
    at = np.arange(len(series_t))
    left = series_t - np.polyval(np.polyfit(at, series_t, 1), at) if len(at) > 2 else series_t - series_t.mean()
    power = float((left**2).sum())
    kept = float((left[1:] * left[:-1]).sum()) / power if power > 0 else 0.0
    return (1 + max(kept, 0.0)) / (1 - min(max(kept, 0.0), 0.99))


def _trend(log: ParticipationLog, trend: Trend) -> Finding:
    begin = log.rounds - log.rounds // 3
    since = _when(log, begin) or str(begin)
    verb = "falls" if trend.last < trend.first else "rises"
    return Finding(
        "trend",
        f"The turnout {verb} from {trend.first:.0%} in the first third of the log to {trend.last:.0%} in the last: its "
        f"earlier rounds describe another fleet. --since {since.replace(' ', 'T')} reads the last third only.",
    )


def _when(log: ParticipationLog, t: int) -> str | None:
    """When a round begins, if the log has a calendar."""
    if log.start_T is None or not log.is_calendar:
        return None
    begin = float(log.start_T[min(t, log.rounds - 1)]) + (log.every or 0.0) * max(t - log.rounds + 1, 0)
    return datetime.fromtimestamp(begin, UTC).strftime("%Y-%m-%d %H:%M")


def _outage(log: ParticipationLog, one: JointAbsence, together: int, names: list[str]) -> Finding:
    begin, end = one.begin * together, min(one.end * together, log.rounds)
    lasted = f"{end - begin:,} round{'s' * (end - begin > 1)}"
    lasted += f" ({_span((end - begin) * log.every)})" if log.every else ""
    of = _when(log, begin)
    since = f"from {of} to {_when(log, end)}" if of else f"from round {begin} on"
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
    more = " of those looked at" if names and log.clients > len(sampled(log)) else ""
    who = f"{len(names):,} clients{more} ({listed}) were" if names else "The whole fleet was"
    return Finding("outage", f"{who} out at the same time, for {lasted}, {since}.", (begin, end))


def _span(seconds: float) -> str:
    return duration(seconds) if seconds < 2 * DAY else f"{seconds / DAY:.1f}".removesuffix(".0") + " days"


def _weekdays(log: ParticipationLog, came_T: np.ndarray, asked_T: np.ndarray) -> str:
    if log.start_T is None or not log.is_calendar:
        return ""
    day_T = (log.start_T // DAY + 3).astype(np.int64) % 7  # 1970 began on a Thursday
    turnout = share(np.bincount(day_T, came_T, 7), np.bincount(day_T, asked_T, 7))
    best, worst = int(np.nanargmax(turnout)), int(np.nanargmin(turnout))
    return f": {turnout[best]:.0%} on {WEEKDAYS[best]}s, {turnout[worst]:.0%} on {WEEKDAYS[worst]}s"


def _labels(log: ParticipationLog) -> str:
    """A sentence if clients of some labels come more than others, by shuffling the labels; else nothing."""
    assert log.label_M is not None
    up_N = log.work_N > 0
    known_M = np.array([bool(label) for label in log.label_M]) & (log.asked_M > 0)
    rate_m = (np.bincount(log.client_N[up_N], minlength=log.clients) / np.maximum(log.asked_M, 1))[known_M]
    labels, label_m = np.unique(np.array(log.label_M)[known_M], return_inverse=True)
    size_L = np.bincount(label_m)
    if len(labels) < 2 or len(labels) == len(label_m):
        return ""
    draw = np.random.default_rng(0)  # the same shuffles for every log
    left_m = rate_m - rate_m.mean()

    def between(left: np.ndarray) -> float:
        return float((np.bincount(label_m, left) ** 2 / size_L).sum())

    beyond = sum(between(draw.permutation(left_m)) >= between(left_m) * (1 - 1e-9) for _ in range(SHUFFLES))
    mean_L = np.bincount(label_m, rate_m) / size_L
    if (1 + beyond) / (1 + SHUFFLES) > ERROR or mean_L.max() - mean_L.min() < LEAST_CHANGE:
        return ""
    best, worst = int(mean_L.argmax()), int(mean_L.argmin())
    return (
        f"The turnout goes with the label: clients of {labels[best]!r} come to {mean_L[best]:.0%} of their rounds, "
        f"those of {labels[worst]!r} to {mean_L[worst]:.0%}. A mean over those who come leans to the former."
    )


def _empty_rounds(came_T: np.ndarray, asked_T: np.ndarray) -> Iterator[Finding]:
    """Rounds to which no client came."""
    empty, rounds = int(((came_T == 0) & (asked_T > 0)).sum()), int((asked_T > 0).sum())
    if empty:
        yield Finding("empty rounds", f"No client came to {empty:,} of {rounds:,} rounds ({empty / rounds:.1%}).")


def _hardly_trains(log: ParticipationLog, came_T: np.ndarray) -> Iterator[Finding]:
    """Most rounds have hardly anybody: with a length of rounds that would work."""
    trains = float((came_T >= FEW).mean())
    if trains < HARDLY_TRAINS and log.clients >= FEW:
        yield Finding("hardly trains", f"This fleet hardly trains: {_hardly(log, trains)}.")


def _hardly(log: ParticipationLog, trains: float) -> str:
    words = f"{1 - trains:.0%} of its rounds have fewer than {FEW} clients"
    every = log.every or 0.0
    if every:
        factors = [round(length / every) for length in LENGTHS if length > every and length % every == 0]
    else:
        factors = [2, 3, 4, 6, 8, 12, 24, 48, 96, 168]
    for factor in factors:
        count = clients_of_longer_rounds(log, factor)
        trains = float((count >= FEW).mean()) if len(count) >= 3 else 0.0
        if trains >= MOSTLY:
            long = f"Rounds of {_span(factor * every)} (--every {_option(factor * every)})" if every else ""
            long = long or f"Rounds {factor} times as long"
            return (
                f"{words}. {long} would have {count.mean():.1f} clients on average, and {FEW} or more in {trains:.0%}"
            )
    return f"{words}, and no length of rounds up to a third of the log gives {MOSTLY:.0%} of them {FEW} clients"


def _option(seconds: float) -> str:
    return next(
        f"{seconds / unit:g}{name}" for unit, name in ((DAY, "d"), (3600.0, "h"), (60.0, "min")) if seconds >= unit
    )


def clients_of_longer_rounds(log: ParticipationLog, factor: int) -> np.ndarray:
    """How many clients come to each round if `factor` rounds are one; an incomplete last one is left out.

    >>> rows = np.array([0, 1, 1, 3]), np.array([0, 0, 1, 1]), np.ones(4)
    >>> clients_of_longer_rounds(ParticipationLog("log", ("a", "b"), 5, *rows), 2).tolist()
    [2, 1]
    """
    count = log.rounds // factor
    up_N = (log.work_N > 0) & (log.round_N < count * factor)
    pair_A = np.unique(log.round_N[up_N].astype(np.int64) // factor * log.clients + log.client_N[up_N])
    return np.bincount(pair_A // log.clients, minlength=count)
