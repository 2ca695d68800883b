"""First steps: something small and real that runs anywhere, without downloads."""

from __future__ import annotations

import turnout.models as models
from turnout.data import Digits
from turnout.data.partition import Classes
from turnout.experiment import Algorithm, Evaluate, Experiment, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.weighting import ByWork
from turnout.world.participation import Traces


def digits(clients: int = 50, rounds: int = 40) -> Experiment:
    """A small CNN on the embedded digits, two classes per client, five kinds of devices, scheme C."""
    return Experiment(
        world=World(
            data=Digits(clients=clients, partition=Classes(per_client=2)),
            participation=Traces(first=5),
        ),
        model=models.digits_cnn(),
        algorithm=Algorithm(local=Local(SGD(lr=0.1), epochs=5, batch_size=10), weighting=ByWork()),
        rounds=rounds,
        evaluate=Evaluate(per_client=True),
        title="digits",
    )
