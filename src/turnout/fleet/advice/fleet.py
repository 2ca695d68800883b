"""What the advice takes from a fleet's log: a few facts about it, and a log of stand-in clients in a form that runs.

Stand-in clients are the log's own, numbered by how often they come, the most frequent first; of a large fleet every
k-th in that order.

Shape letters: M clients of the log, T rounds of the log.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.world.events import Events, Join, Leave
from turnout.world.log import HEADER, ParticipationLog

MOST_CLIENTS = 40  # stand-ins: the digits are enough for so many
RARELY = 0.1  # of the mean turnout


@dataclass(frozen=True)
class FleetFacts:
    """What a log says in short. `every`: seconds from round to round, where it has times; `asked`: the share of the
    clients asked in a round."""

    path: str
    clients: int
    rounds: int
    turnout: float
    work: float
    full: float
    hardly_there: int
    joined: int
    left: int
    asked: float
    every: float | None
    assumed: tuple[str, ...]
    turnout_T: tuple[float, ...]

    def sentences(self) -> list[str]:
        """The facts as a person would say them."""
        found = [
            f"{self.clients:,} clients in {self.rounds:,} rounds; {percent(self.turnout)} of those asked came, and did "
            f"{percent(self.work)} of the work on average ({percent(self.full)} of them all of it)"
        ]
        changed = [f"{n} {word}" for n, word in ((self.joined, "joined late"), (self.left, "left")) if n]
        found += [", ".join(changed)] if changed else []
        found += [f"{self.hardly_there} are hardly ever there"] if self.hardly_there else []
        return [*found, *self.assumed]


def percent(share: float) -> str:
    """A share without decimals.

    >>> percent(0.374)
    '37 %'
    """
    return f"{100 * share:.0f} %"


def facts_of(fleet: ParticipationLog) -> FleetFacts:
    came_M, asked_M, turnout_T, works = np.zeros(fleet.clients), np.zeros(fleet.clients), [], []
    for t in range(fleet.rounds):
        work_M = fleet.work(t)
        asked, came = ~np.isnan(work_M), np.nan_to_num(work_M) > 0
        asked_M, came_M = asked_M + asked, came_M + came
        turnout_T.append(came.sum() / max(1, asked.sum()))
        works.append(work_M[came])
    work = np.concatenate(works) if works else np.zeros(0)
    share_M = came_M / np.maximum(asked_M, 1)
    turnout = float(came_M.sum() / max(1.0, asked_M.sum()))
    return FleetFacts(
        path=fleet.path,
        clients=fleet.clients,
        rounds=fleet.rounds,
        turnout=turnout,
        work=float(work.mean()) if len(work) else 0.0,
        full=float((work >= 1).mean()) if len(work) else 0.0,
        hardly_there=int(((share_M < RARELY * turnout) & (asked_M > 0)).sum()),
        joined=int((fleet.joined_M > 0).sum()),
        left=int((fleet.left_M < fleet.rounds).sum()),
        asked=float(asked_M.sum() / max(1, fleet.clients * fleet.rounds)),
        every=fleet.every,
        assumed=fleet.assumed,
        turnout_T=tuple(float(x) for x in turnout_T),
    )


def chosen_clients(fleet: ParticipationLog, most: int = MOST_CLIENTS) -> np.ndarray:
    """The clients of the log that stand-ins take after, the most frequent first; every k-th of many."""
    came_M = np.bincount(fleet.client_N, weights=fleet.work_N > 0, minlength=fleet.clients)
    order_M = np.argsort(-came_M, kind="stable")
    if len(order_M) <= most:
        return order_M
    return order_M[np.linspace(0, len(order_M) - 1, most).round().astype(int)]


def write_stand_ins(fleet: ParticipationLog, chosen: np.ndarray, path: Path) -> None:
    """The log of the stand-in clients, numbered from 0, with a 0 for each absence and the time where it is known."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*HEADER, *(() if fleet.start_T is None else ("time",))))
        for t in range(fleet.rounds):
            work_S = fleet.work(t)[chosen]
            when = () if fleet.start_T is None else (f"{fleet.start_T[t]:.0f}",)
            writer.writerows((t, i, f"{work_S[i]:.4g}", *when) for i in np.flatnonzero(~np.isnan(work_S)))


def events_of(fleet: ParticipationLog, chosen: np.ndarray, rounds: int) -> tuple[Events, ...]:
    """Joins and leaves of the stand-ins, at the same part of a run as of the log."""
    found: list[Events] = []
    for i, client in enumerate(chosen.tolist()):
        joined, left = (int(at[client] * rounds / fleet.rounds) for at in (fleet.joined_M, fleet.left_M))
        found += [Join(i, joined)] if 0 < joined < rounds else []
        found += [Leave(i, left)] if max(joined, 0) < left < rounds and fleet.left_M[client] < fleet.rounds else []
    return tuple(found)
