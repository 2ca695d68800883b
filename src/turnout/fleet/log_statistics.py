"""Statistics by which a log and draws from it are compared: turnout, lengths of stays, joint absences, daily profile.

Shape letters: T rounds, C clients, R runs of rounds in one state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from turnout.fleet.participation_log import ParticipationLog
from turnout.world.enrolment import tied
from turnout.world.participation import Participation

SAMPLED, ROUNDS = 400, 5000  # most clients and rounds that are looked at one by one

Draw = Callable[[torch.Tensor, int], torch.Tensor]  # clients and round -> work


@dataclass(frozen=True)
class Statistics:
    """Statistics of the participation of some clients in some rounds.

    turnout     share of the clients asked that came
    work        mean work of those that came
    stay, away  mean length of a stay and of an absence, in rounds
    uneven      standard deviation of the clients' own turnouts
    together    mean correlation of the presence of two clients over rounds
    by_round    standard deviation of the turnout over rounds
    by_hour     turnout at each round of the day (or other season), if there is one
    """

    turnout: float
    work: float
    stay: float
    away: float
    uneven: float
    together: float
    by_round: float
    by_hour: tuple[float, ...] = ()


def statistics(work_TC: np.ndarray, season: int = 1) -> Statistics:
    """The statistics of a table of work, where NaN is not asked and 0 is absent."""
    asked_TC = ~np.isnan(work_TC)
    came_TC = asked_TC & (work_TC > 0)
    up_R, down_R = runs(work_TC)
    turnout_C = share(came_TC.sum(0), asked_TC.sum(0))
    hour_T = np.arange(len(work_TC)) % season
    came_H = np.bincount(hour_T, came_TC.sum(1), season)
    asked_H = np.bincount(hour_T, asked_TC.sum(1), season)
    # Mean correlation: with z = (came - own mean) / own deviation, 0 where not asked or never different, the sum over
    # pairs is ((sum z)^2 - sum z^2) / 2.
    sd_C = np.sqrt(turnout_C * (1 - turnout_C))
    z_TC = np.where(asked_TC & (sd_C > 0), (came_TC - turnout_C) / np.where(sd_C > 0, sd_C, 1.0), 0.0)
    both = (asked_TC.sum(1) ** 2 - asked_TC.sum(1)).sum()
    pairs = (z_TC.sum(1) ** 2 - (z_TC**2).sum(1)).sum()
    return Statistics(
        turnout=float(share(came_TC.sum(), asked_TC.sum())),
        work=float(work_TC[came_TC].mean()) if came_TC.any() else 0.0,
        stay=float(up_R.mean()) if len(up_R) else 0.0,
        away=float(down_R.mean()) if len(down_R) else 0.0,
        uneven=float(np.nanstd(turnout_C)),
        together=float(pairs / both) if both else 0.0,
        by_round=float(np.nanstd(share(came_TC.sum(1), asked_TC.sum(1)))),
        by_hour=tuple(share(came_H, asked_H).tolist()) if season > 1 else (),
    )


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)


def runs(work_TC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of all stays and of all absences, in rounds; NaN (not asked) ends a run.

    >>> up_R, down_R = runs(np.array([[1.0], [0.5], [0.0], [1.0], [np.nan], [1.0]]))
    >>> up_R.tolist(), down_R.tolist()
    ([2, 1, 1], [1])
    """
    state_TC = np.where(np.isnan(work_TC), -1, work_TC > 0)
    border_C = np.full((1, state_TC.shape[1]), -2)
    state = np.concatenate([state_TC, border_C]).T.ravel()  # one client after the other, with a border between
    begins = np.flatnonzero(np.concatenate([[True], np.diff(state) != 0]))
    length_R = np.diff(np.concatenate([begins, [len(state)]]))
    kind_R = state[begins]
    return length_R[kind_R == 1], length_R[kind_R == 0]


def sampled(log: ParticipationLog) -> np.ndarray:
    """At most SAMPLED clients of a log, evenly taken from all."""
    return np.unique(np.linspace(0, log.clients - 1, min(SAMPLED, log.clients)).astype(np.int64))


def presence(log: ParticipationLog) -> np.ndarray:
    """The work of `sampled` clients of a log in its first rounds [T, C]; NaN is not asked."""
    chosen_C = sampled(log)
    count = min(ROUNDS, log.rounds)
    work_TC = np.full((count, len(chosen_C)), np.nan)
    if log.missing == "absent":
        t_T = np.arange(count)[:, None]
        work_TC[(log.joined_M[chosen_C] <= t_T) & (t_T < log.left_M[chosen_C])] = 0.0
    place_M = np.full(log.clients, -1)
    place_M[chosen_C] = np.arange(len(chosen_C))
    rows_n = np.flatnonzero(place_M[log.client_N[: log.first_row_T[count]]] >= 0)
    work_TC[log.round_N[rows_n], place_M[log.client_N[rows_n]]] = log.work_N[rows_n]
    return work_TC


def drawn(draw: Draw, clients: int, rounds: int) -> np.ndarray:
    """The draws of a participation as a table of work [T, C]."""
    client_C = torch.arange(clients)
    return np.stack([draw(client_C, t).numpy() for t in range(rounds)])


def mean_of(several: Sequence[Statistics]) -> Statistics:
    means = {f.name: float(np.mean([getattr(one, f.name) for one in several])) for f in fields(Statistics)[:-1]}
    return Statistics(**means, by_hour=tuple(np.mean([one.by_hour for one in several], axis=0).tolist()))


def check_like_log(
    participation: Participation,
    log: ParticipationLog,
    within: float = 0.15,
    clients: int | None = None,
    seeds: int = 3,
) -> None:
    """Promises of a participation that is drawn from a fleet's log: its statistics are the log's.

    Turnout, work and the mean lengths of stays and absences may differ by `within` of themselves; how alike clients'
    absences are, the spread of the turnout over rounds and over clients, and the turnout at each hour of the day by
    `within / 2` as a number. `clients`: how many to draw for (as many as the log has).
    """
    from turnout.testing.examples import example_enrolment, expect  # needed by nothing else here

    count = clients or log.clients
    part = tied(participation, example_enrolment(count), log.rounds, "check_like_log")
    day = log.rounds_a_day or 1
    logged = statistics(presence(log), day)

    def draw(seed: int) -> Statistics:
        return statistics(drawn(lambda c, t: part.fraction(c, t, 1, seed), count, log.rounds), day)

    found = mean_of([draw(seed) for seed in range(seeds)])
    for name in ("turnout", "work", "stay", "away", "uneven", "together", "by_round"):
        there, here = getattr(logged, name), getattr(found, name)
        most = within / 2 if name in ("uneven", "together", "by_round") else within * there
        expect(abs(here - there) <= most, f"{name}: the log has {there:.4g}, drawn are {here:.4g}")
    for hour, (there, here) in enumerate(zip(logged.by_hour, found.by_hour, strict=True)):
        words = f"round {hour} of the day: the log has a turnout of {there:.4g}, drawn are {here:.4g}"
        expect(abs(here - there) <= within / 2, words)
