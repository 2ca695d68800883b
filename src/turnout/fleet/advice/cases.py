"""The worlds in which candidates race, under the log's turnout: the user's experiment, or stand-ins from mild to harsh.

Stand-ins are the embedded digits with a small network, so that a run takes a fraction of a second. They differ in the
labels of each client: a mild mixture, two labels each, and labels that go with turnout, so that clients that hardly
come hold labels that no other has. Their clients are the log's own, numbered by how often they come, the most frequent
first; of a large fleet every k-th in that order.

Shape letters: M clients of the log, S stand-ins.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import turnout.models as models
from turnout.data import Digits
from turnout.data.partition import Classes, Clustered, Dirichlet, Partition
from turnout.errors import UserError
from turnout.experiment import Algorithm, Evaluate, Experiment, World
from turnout.fleet import ParticipationLog, Reading
from turnout.fleet.blocks import block_length
from turnout.fleet.diagnosis import Diagnosis
from turnout.fleet.fleet_participation import FleetLog
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.selection import Everyone, Fraction, Selection
from turnout.settings import InProcess
from turnout.world.devices import SpreadDevices
from turnout.world.events import Events, Join, Leave
from turnout.world.log import HEADER

MOST_CLIENTS = 40  # stand-ins: the digits are enough for so many
ROUNDS = 60  # of a run on stand-ins
STAND_INS = "stand-ins.csv"
DEVICES = SpreadDevices(samples_per_second=10.0)  # of stand-ins: the log does not say how fast devices are
ALL_ASKED = 0.9  # if a larger share is asked in a round, all clients are


@dataclass(frozen=True)
class RaceCase:
    """A world and a model with plain FedAvg.

    name        in tables
    about       in a few words
    experiment  with plain FedAvg
    chosen      the clients of the log that are stand-ins; empty: the experiment has clients of its own
    """

    name: str
    about: str
    experiment: Experiment
    chosen: tuple[str, ...] = ()

    def lasting(self, rounds: int) -> RaceCase:
        """The same with so many rounds; joins and leaves are at the same part of the run."""
        if rounds == self.experiment.rounds:
            return self
        part = rounds / self.experiment.rounds
        events = tuple(
            replace(event, round=max(1, int(event.round * part))) if isinstance(event, Join | Leave) else event
            for event in self.experiment.world.events
        )
        return replace(self, experiment=self.experiment.but(rounds=rounds, **{"world.events": events}))


def given_case(
    experiment: Experiment, log: Path, reading: Reading, rounds: int | None = None, length: int | None = None
) -> RaceCase:
    """The user's data and model, local training, shares and selection, with plain FedAvg under the log's turnout.

    `length`: rounds of a block. Devices are those of the experiment, or are assumed, so that time has a cost.
    """
    given = experiment.algorithm
    if not isinstance(given, Algorithm):
        raise UserError("advice is for methods that federate weights: the experiment's algorithm is another track")
    plain = Algorithm(local=given.local, shares=given.shares, selection=given.selection, nonfinite=given.nonfinite)
    base = replace(experiment, algorithm=plain).but(track=())
    participation = FleetLog(str(log), mode="blocks", length=length, reading=reading)
    devices = base.world.devices or DEVICES
    base = base.but(**{"world.participation": participation, "world.devices": devices})
    evaluate = replace(base.evaluate, every=base.rounds, personal=True)
    base = base.but(evaluate=evaluate, runtime=base.runtime.on_threads(1))
    return RaceCase("yours", "your data and model", base).lasting(rounds or experiment.rounds)


def stand_ins(log: ParticipationLog, facts: Diagnosis, folder: Path, rounds: int = ROUNDS) -> list[RaceCase]:
    """Three worlds from mild to harsh, of the log's own clients."""
    chosen_S = chosen_clients(log)
    write_stand_ins(log, chosen_S, folder / STAND_INS)
    reading = Reading(missing=log.missing, first_round=0)
    participation = FleetLog(str(folder / STAND_INS), mode="blocks", length=block_length(log), reading=reading)
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
            World(data, participation, events_of(log, chosen_S, rounds), devices=DEVICES),
            models.MLP(32),
            Algorithm(Local(SGD(lr=0.1), epochs=2, batch_size=10), selection=_selection(facts, clients)),
            rounds=rounds,
            evaluate=Evaluate(every=rounds, personal=True),
            runtime=InProcess(device="cpu", threads=1),
        )
        cases.append(RaceCase(name, about, base, tuple(log.names[m] for m in chosen_S)))
    return cases


def write_stand_ins(log: ParticipationLog, chosen_S: Sequence[int] | np.ndarray, path: Path) -> None:
    """Write the log of some clients, numbered from 0, with a 0 for each absence."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*HEADER, *(() if log.start_T is None else ("time",))))
        for t in range(log.rounds):
            work_S = log.work(t)[chosen_S]
            when = () if log.start_T is None else (f"{log.start_T[t]:.0f}",)
            writer.writerows((t, i, f"{work_S[i]:.4g}", *when) for i in np.flatnonzero(~np.isnan(work_S)))


def chosen_clients(log: ParticipationLog, most: int = MOST_CLIENTS) -> np.ndarray:
    """The clients of the log that become stand-ins, the most frequent first; every k-th of many."""
    came_M = np.bincount(log.client_N, weights=log.work_N > 0, minlength=log.clients)
    order_M = np.argsort(-came_M, kind="stable")
    if len(order_M) <= most:
        return order_M
    return order_M[np.linspace(0, len(order_M) - 1, most).round().astype(int)]


def events_of(log: ParticipationLog, chosen_S: Sequence[int] | np.ndarray, rounds: int) -> tuple[Events, ...]:
    """Joins and leaves of the stand-ins, at the same part of a run as of the log."""
    found: list[Events] = []
    for i, client in enumerate(chosen_S):
        joined, left = (int(at_M[client] * rounds / log.rounds) for at_M in (log.joined_M, log.left_M))
        found += [Join(i, joined)] if 0 < joined < rounds else []
        found += [Leave(i, left)] if max(joined, 0) < left < rounds and log.left_M[client] < log.rounds else []
    return tuple(found)


def _selection(facts: Diagnosis, clients: int) -> Selection:
    """Ask as large a share of the clients as the log did, but at least four."""
    if facts.asked_share >= ALL_ASKED or clients <= 4:
        return Everyone()
    return Fraction(float(np.clip(facts.asked_share, 4 / clients, 1.0)))
