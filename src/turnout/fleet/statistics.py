"""What a log, and what is drawn from it, are compared by: turnout, run lengths, joint absences, the day's profile.

Shape letters: T rounds, C clients, H rounds of a day, P pairs of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from turnout.fleet.fleet import Fleet
from turnout.fleet.spells import runs

SAMPLED = 400  # clients whose rounds are looked at one by one
ROUNDS = 5000  # at most


@dataclass(frozen=True)
class Statistics:
    """In numbers of clients and rounds:

    turnout         the share of those asked that came
    work            the mean work of those who came
    stay, away      the mean length of a stay and of an absence, in rounds
    uneven          the standard deviation of clients' own turnouts
    together        how alike two clients' absences are: the mean correlation of pairs over rounds
    by_round        the standard deviation of the turnout from round to round
    by_hour         the turnout at each round of the day (or other season), where there is one
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
    """Of a table of work: NaN is not asked, 0 absent."""
    asked_TC = ~np.isnan(work_TC)
    came_TC = asked_TC & (work_TC > 0)
    up_R, down_R = runs(work_TC)
    turnout_T = _share(came_TC.sum(1), asked_TC.sum(1))
    hour_T = np.arange(len(work_TC)) % season
    came_H = np.bincount(hour_T, came_TC.sum(1), season)
    asked_H = np.bincount(hour_T, asked_TC.sum(1), season)
    return Statistics(
        turnout=float(_share(came_TC.sum(), asked_TC.sum())),
        work=float(work_TC[came_TC].mean()) if came_TC.any() else 0.0,
        stay=float(up_R.mean()) if len(up_R) else 0.0,
        away=float(down_R.mean()) if len(down_R) else 0.0,
        uneven=float(np.nanstd(_share(came_TC.sum(0), asked_TC.sum(0)))),
        together=_together(asked_TC, came_TC),
        by_round=float(np.nanstd(turnout_T)),
        by_hour=tuple(_share(came_H, asked_H).tolist()) if season > 1 else (),
    )


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)


def _together(asked_TC: np.ndarray, came_TC: np.ndarray) -> float:
    """The mean correlation of two clients' presence over the rounds in which both were asked; 0 if one never varies.

    With z = (came - own mean) / own deviation, 0 where not asked, sum over pairs = ((sum z)^2 - sum z^2) / 2.
    """
    mean_C = _share(came_TC.sum(0), asked_TC.sum(0))
    sd_C = np.sqrt(mean_C * (1 - mean_C))
    z_TC = np.where(asked_TC & (sd_C > 0), (came_TC - mean_C) / np.where(sd_C > 0, sd_C, 1.0), 0.0)
    both = (asked_TC.sum(1) ** 2 - asked_TC.sum(1)).sum()
    pairs = (z_TC.sum(1) ** 2 - (z_TC**2).sum(1)).sum()
    return float(pairs / both) if both else 0.0


def sampled(fleet: Fleet, clients: int = SAMPLED) -> np.ndarray:
    """Some clients of a log, evenly taken from all."""
    return np.unique(np.linspace(0, fleet.clients - 1, min(clients, fleet.clients)).astype(np.int64))


def presence(fleet: Fleet, clients: int = SAMPLED, rounds: int = ROUNDS) -> np.ndarray:
    """The work of some clients of a log (`sampled`) in its first rounds [T, C]; NaN is not asked."""
    chosen_C = sampled(fleet, clients)
    count = min(rounds, fleet.rounds)
    work_TC = np.full((count, len(chosen_C)), np.nan)
    if fleet.missing == "absent":
        t_T = np.arange(count)[:, None]
        work_TC[(fleet.joined_M[chosen_C] <= t_T) & (t_T < fleet.left_M[chosen_C])] = 0.0
    place_M = np.full(fleet.clients, -1)
    place_M[chosen_C] = np.arange(len(chosen_C))
    rows_n = np.flatnonzero((place_M[fleet.client_N] >= 0) & (fleet.round_N < count))
    work_TC[fleet.round_N[rows_n], place_M[fleet.client_N[rows_n]]] = fleet.work_N[rows_n]
    return work_TC


Draw = Callable[[torch.Tensor, int], torch.Tensor]  # clients and round -> work


def drawn(draw: Draw, clients: int, rounds: int) -> np.ndarray:
    """What a participation gives, as a table of work [T, C]."""
    client_C = torch.arange(clients)
    return np.stack([draw(client_C, t).numpy() for t in range(rounds)])


def mean_of(found: Sequence[Statistics]) -> Statistics:
    """The mean of statistics of several draws."""
    means = {f.name: float(np.mean([getattr(one, f.name) for one in found])) for f in fields(Statistics)[:-1]}
    return Statistics(**means, by_hour=tuple(np.mean([one.by_hour for one in found], axis=0).tolist()))
