"""The methods that papers compare with, in one world: the embedded digits, two classes a client, some clients away."""

from __future__ import annotations

from typing import Any

import turnout as to
import turnout.models as models
from turnout import SGD, Algorithm, Evaluate, Experiment, Local, World
from turnout.data import Digits
from turnout.data.partition import Classes
from turnout.parts.weighting import FedAvg, FedNova
from turnout.world.participation import Dropout
from turnout_papers.recipes import ONE_CORE

AMP, MU = (
    to.mixing.FedAMP(alpha=0.1, sigma=1.0),
    1.0,
)  # λ = 0.1: with η = 0.05 ten local steps undo 40 % of a distance to u_k
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"weighting": FedAvg()},
    "FedProx": {"terms": (to.terms.Proximal(mu=0.2),)},
    "FedNova": {"weighting": FedNova()},
    "SCAFFOLD": {"terms": (to.terms.Scaffold(),)},
    "FedGATE": {"terms": (to.terms.FedGATE(),)},
    "VRL-SGD": {"terms": (to.terms.VRLSGD(),)},
    "MimeLite": {"terms": (to.terms.MimeLite(),)},
    "APFL": {"terms": (to.terms.APFL(),)},
    "FedAMP": {"mixing": AMP, "terms": (to.terms.Proximal(mu=MU),)},
}


def baselines(clients: int = 20, classes: int = 2, away: float = 0.3, rounds: int = 60) -> dict[str, Experiment]:
    """FedAvg, FedProx, FedNova, SCAFFOLD, FedGATE, VRL-SGD, MimeLite, APFL and FedAMP on the embedded digits."""
    return {
        name: Experiment(
            world=World(Digits(clients=clients, partition=Classes(per_client=classes)), Dropout(away)),
            model=models.MLP(32),
            algorithm=Algorithm(local=Local(SGD(lr=0.05), steps=10, batch_size=10), **parts),
            rounds=rounds,
            evaluate=Evaluate(personal=True),
            runtime=ONE_CORE,
        )
        for name, parts in METHODS.items()
    }
