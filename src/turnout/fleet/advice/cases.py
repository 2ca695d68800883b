"""The worlds in which candidates race, under the log's turnout: the user's experiment, or stand-ins from mild to harsh.

Stand-ins are the embedded digits with a small network, so that a run takes a fraction of a second. They differ in the
labels of each client: a mild mixture, two labels each, and labels that go with turnout, so that clients that hardly
come hold labels that no other has. Their clients are the log's own, numbered by how often they come, the most frequent
first; of a large fleet every k-th in that order.

Shape letters: M clients of the log, N rows of the log, T rounds of the log, S stand-ins.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import turnout.models as models
from turnout.data import Digits
from turnout.data.partition import Classes, Clustered, Dirichlet, Natural, Partition
from turnout.errors import UserError
from turnout.experiment import Algorithm, Evaluate, Experiment, World
from turnout.fleet import ParticipationLog, Reading
from turnout.fleet.fleet_participation import FleetLog
from turnout.fleet.log_statistics import share
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.selection import Everyone, Fraction, Selection
from turnout.settings import InProcess
from turnout.world.events import Events, Join, Leave
from turnout.world.log import HEADER
from turnout.world.participation import Dropout

MOST_CLIENTS = 40  # stand-ins: the digits are enough for so many
RARELY = 0.1  # of the mean turnout
ROUNDS = 60  # of a run on stand-ins
STAND_INS = "stand-ins.csv"
ALL_ASKED = 0.9  # if a larger share is asked in a round, all clients are


@dataclass(frozen=True)
class FleetFacts:
    """A few facts about a log.

    path, clients, rounds, every, assumed  as in the log
    turnout       share of those asked that came
    work, full    mean work of those that came, and the share of them that did all of it
    hardly_there  how many clients come to less than RARELY times the mean turnout
    joined, left  how many clients joined late, or left
    asked         share of the clients that is asked in a round
    turnout_T     turnout by round
    """

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


def facts_of(log: ParticipationLog) -> FleetFacts:
    up_N = log.work_N > 0
    came_M, asked_M = np.bincount(log.client_N[up_N], minlength=log.clients), log.asked_M
    came_T = np.bincount(log.round_N[up_N], minlength=log.rounds)
    asked_T = np.array([len(log.asked(t)) for t in range(log.rounds)])
    turnout = float(came_M.sum() / max(1.0, asked_M.sum()))
    return FleetFacts(
        path=log.path,
        clients=log.clients,
        rounds=log.rounds,
        turnout=turnout,
        work=float(log.work_N[up_N].mean()) if up_N.any() else 0.0,
        full=float((log.work_N[up_N] >= 1).mean()) if up_N.any() else 0.0,
        hardly_there=int(((came_M / np.maximum(asked_M, 1) < RARELY * turnout) & (asked_M > 0)).sum()),
        joined=int((log.joined_M > 0).sum()),
        left=int((log.left_M < log.rounds).sum()),
        asked=float(asked_M.sum() / max(1, log.clients * log.rounds)),
        every=log.every,
        assumed=log.assumed,
        turnout_T=tuple(np.nan_to_num(share(came_T, asked_T)).tolist()),
    )


@dataclass(frozen=True)
class RaceCase:
    """A world and a model with plain FedAvg.

    name        in tables
    about       in a few words
    experiment  with plain FedAvg
    skewed      the same with more skewed data, if that can be made
    """

    name: str
    about: str
    experiment: Experiment
    skewed: Experiment | None = None

    def lasting(self, rounds: int) -> RaceCase:
        """The same with so many rounds; joins and leaves are at the same part of the run."""
        if rounds == self.experiment.rounds:
            return self
        part = rounds / self.experiment.rounds
        events = tuple(
            replace(event, round=max(1, int(event.round * part))) if isinstance(event, Join | Leave) else event
            for event in self.experiment.world.events
        )
        changed = {"world.events": events}
        skewed = None if self.skewed is None else self.skewed.but(rounds=rounds, **changed)
        return replace(self, experiment=self.experiment.but(rounds=rounds, **changed), skewed=skewed)

    def halved(self) -> Experiment:
        """With half the turnout: each client that would come is absent with probability 1/2."""
        away = Dropout(0.5, when_up=self.experiment.world.participation)
        return self.experiment.but(**{"world.participation": away})


def given_case(experiment: Experiment, log: Path, reading: Reading, rounds: int | None = None) -> RaceCase:
    """The user's data and model, local training, shares and selection, with plain FedAvg under the log's turnout."""
    given = experiment.algorithm
    if not isinstance(given, Algorithm):
        raise UserError("advice is for methods that federate weights: the experiment's algorithm is another track")
    plain = Algorithm(local=given.local, shares=given.shares, selection=given.selection, nonfinite=given.nonfinite)
    base = replace(experiment, algorithm=plain).but(track=())
    base = base.but(**{"world.participation": FleetLog(str(log), mode="blocks", reading=reading)})
    evaluate = replace(base.evaluate, every=base.rounds, personal=True)
    base = base.but(evaluate=evaluate, runtime=base.runtime.on_threads(1))
    divided = getattr(base.world.data, "partition", None)
    can_skew = divided is not None and not isinstance(divided, Natural)
    skewed = base.but(**{"world.data.partition": Classes(per_client=1)}) if can_skew else None
    return RaceCase("yours", "your data and model", base, skewed).lasting(rounds or experiment.rounds)


def stand_ins(log: ParticipationLog, facts: FleetFacts, folder: Path, rounds: int = ROUNDS) -> list[RaceCase]:
    """Three worlds from mild to harsh, of the log's own clients."""
    chosen_S = chosen_clients(log)
    with open(folder / STAND_INS, "w", newline="", encoding="utf-8") as file:  # a 0 for each absence
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*HEADER, *(() if log.start_T is None else ("time",))))
        for t in range(log.rounds):
            work_S = log.work(t)[chosen_S]
            when = () if log.start_T is None else (f"{log.start_T[t]:.0f}",)
            writer.writerows((t, i, f"{work_S[i]:.4g}", *when) for i in np.flatnonzero(~np.isnan(work_S)))
    reading = Reading(missing=log.missing, first_round=0)
    participation = FleetLog(str(folder / STAND_INS), mode="blocks", reading=reading)
    clients, clusters = len(chosen_S), min(5, len(chosen_S))
    partitions: dict[str, tuple[str, Partition]] = {
        "mild": ("labels mixed, Dirichlet(3)", Dirichlet(alpha=3.0)),
        "skewed": ("two labels a client", Classes(per_client=2)),
        "harsh": ("labels go with turnout: clients that hardly come hold labels of their own",
                  Clustered(clusters, 10 // clusters)),
    }  # fmt: skip
    cases = []
    for name, (about, partition) in partitions.items():
        data = Digits(clients=clients, partition=partition)
        base = Experiment(
            World(data, participation, events_of(log, chosen_S, rounds)),
            models.MLP(32),
            Algorithm(Local(SGD(lr=0.1), epochs=2, batch_size=10), selection=_selection(facts, clients)),
            rounds=rounds,
            evaluate=Evaluate(every=rounds, personal=True),
            runtime=InProcess(device="cpu", threads=1),
        )
        skewed = base.but(**{"world.data.partition": Classes(per_client=1)}) if name != "harsh" else None
        cases.append(RaceCase(name, about, base, skewed))
    return cases


def chosen_clients(log: ParticipationLog, most: int = MOST_CLIENTS) -> np.ndarray:
    """The clients of the log that become stand-ins, the most frequent first; every k-th of many."""
    came_M = np.bincount(log.client_N, weights=log.work_N > 0, minlength=log.clients)
    order_M = np.argsort(-came_M, kind="stable")
    if len(order_M) <= most:
        return order_M
    return order_M[np.linspace(0, len(order_M) - 1, most).round().astype(int)]


def events_of(log: ParticipationLog, chosen_S: np.ndarray, rounds: int) -> tuple[Events, ...]:
    """Joins and leaves of the stand-ins, at the same part of a run as of the log."""
    found: list[Events] = []
    for i, client in enumerate(chosen_S.tolist()):
        joined, left = (int(at_M[client] * rounds / log.rounds) for at_M in (log.joined_M, log.left_M))
        found += [Join(i, joined)] if 0 < joined < rounds else []
        found += [Leave(i, left)] if max(joined, 0) < left < rounds and log.left_M[client] < log.rounds else []
    return tuple(found)


def _selection(facts: FleetFacts, clients: int) -> Selection:
    """Ask as large a share of the clients as the log did, but at least four."""
    if facts.asked >= ALL_ASKED or clients <= 4:
        return Everyone()
    return Fraction(float(np.clip(facts.asked, 4 / clients, 1.0)))
