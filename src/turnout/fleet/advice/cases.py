"""The worlds in which candidates race: the user's experiment, or stand-ins from mild to harsh; under the log's turnout.

Stand-ins are the embedded digits with a small network, so that a run takes a fraction of a second. What differs between
them is who holds which labels: a mild mixture, two labels for each client, and labels that go with turnout, so that the
clients that hardly come hold what nobody else has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import turnout.models as models
from turnout.data import Digits
from turnout.data.partition import Classes, Clustered, Dirichlet, Natural, Partition
from turnout.experiment import Algorithm, Evaluate, Experiment, World
from turnout.fleet import ParticipationLog, Reading
from turnout.fleet.advice.candidates import plain
from turnout.fleet.advice.fleet import FleetFacts, chosen_clients, events_of, write_stand_ins
from turnout.fleet.fleet_participation import FleetLog
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.selection import Everyone, Fraction, Selection
from turnout.runtimes.settings import InProcess
from turnout.world.events import Events, Join, Leave
from turnout.world.participation import Dropout

ROUNDS = 60  # of a run on stand-ins
STAND_INS = "stand-ins.csv"
ALL_ASKED = 0.9  # where more are asked in a round, everyone is


@dataclass(frozen=True)
class Case:
    """A world and a model with plain FedAvg; `skewed` is the same with more skewed data, where that can be made."""

    name: str
    about: str
    experiment: Experiment
    skewed: Experiment | None = None

    def lasting(self, rounds: int) -> Case:
        """The same with so many rounds; events are at the same part of the run."""
        if rounds == self.experiment.rounds:
            return self
        part = rounds / self.experiment.rounds
        changed = {"world.events": tuple(_moved(event, part) for event in self.experiment.world.events)}
        skewed = None if self.skewed is None else self.skewed.but(rounds=rounds, **changed)
        return replace(self, experiment=self.experiment.but(rounds=rounds, **changed), skewed=skewed)

    def halved(self) -> Experiment:
        """With half the turnout: of those who would come, each stays away with probability 1/2."""
        away = Dropout(0.5, when_up=self.experiment.world.participation)
        return self.experiment.but(**{"world.participation": away})


def stand_ins(fleet: ParticipationLog, facts: FleetFacts, folder: Path, rounds: int = ROUNDS) -> list[Case]:
    """Three worlds from mild to harsh, of the log's own clients."""
    chosen = chosen_clients(fleet)
    write_stand_ins(fleet, chosen, folder / STAND_INS)
    log = FleetLog(str(folder / STAND_INS), mode="blocks", reading=Reading(missing=fleet.missing, first_round=0))
    clients, selection = len(chosen), _selection(facts, len(chosen))
    clusters = min(5, clients)
    partitions: dict[str, tuple[str, Partition]] = {
        "mild": ("labels mixed, Dirichlet(3)", Dirichlet(alpha=3.0)),
        "skewed": ("two labels a client", Classes(per_client=2)),
        "harsh": ("labels go with turnout: those who hardly come hold labels of their own",
                  Clustered(clusters, 10 // clusters)),
    }  # fmt: skip
    found = []
    for name, (about, partition) in partitions.items():
        world = World(Digits(clients=clients, partition=partition), log, events_of(fleet, chosen, rounds))
        base = Experiment(
            world,
            models.MLP(32),
            Algorithm(Local(SGD(lr=0.1), epochs=2, batch_size=10), selection=selection),
            rounds=rounds,
            evaluate=Evaluate(every=rounds, personal=True),
            runtime=InProcess(device="cpu", threads=1),
        )
        skewed = base.but(**{"world.data.partition": Classes(per_client=1)}) if name != "harsh" else None
        found.append(Case(name, about, base, skewed))
    return found


def _moved(event: Events, part: float) -> Events:
    """A join or leave at another round; what is drawn or read from a file stays."""
    if not isinstance(event, Join | Leave):
        return event
    return replace(event, round=max(1, int(event.round * part)))


def _selection(facts: FleetFacts, clients: int) -> Selection:
    """Ask as large a part of the clients as the log did, but at least four."""
    if facts.asked >= ALL_ASKED or clients <= 4:
        return Everyone()
    return Fraction(float(np.clip(facts.asked, 4 / clients, 1.0)))


def given_case(experiment: Experiment, log: Path, reading: Reading, rounds: int | None = None) -> Case:
    """The user's own data and model, under the log's turnout."""
    base = plain(experiment).but(track=())
    base = base.but(**{"world.participation": FleetLog(str(log), mode="blocks", reading=reading)})
    evaluate = replace(base.evaluate, every=base.rounds, personal=True)
    base = base.but(evaluate=evaluate, runtime=base.runtime.on_threads(1))
    data = base.world.data
    divided = getattr(data, "partition", None)
    can_skew = divided is not None and not isinstance(divided, Natural)
    skewed = base.but(**{"world.data.partition": Classes(per_client=1)}) if can_skew else None
    return Case("yours", "your data and model", base, skewed).lasting(rounds or experiment.rounds)
