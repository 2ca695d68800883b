"""A weighting of your own in ten lines: half way between schemes B and C.

python examples/own_weighting.py
"""

from dataclasses import dataclass

import turnout as to
from turnout.parts.weighting import scale
from turnout.testing import check_weighting
from turnout.types import Turnout


@dataclass(frozen=True)
class Tempered(to.weighting.Weighting):
    """a_k = (E / s_k)^power p_k: scheme B at power 0, scheme C at power 1."""

    power: float = 0.5

    def client_scale(self, turnout: Turnout):
        return scale(turnout.progress_C, turnout.full_progress_C) ** self.power


if __name__ == "__main__":
    check_weighting(Tempered())
    experiment = to.Experiment(
        world=to.World(to.data.Synthetic(1.0, 1.0, clients=30), to.participation.Traces(first=5)),
        algorithm=to.Algorithm(to.Local(to.SGD(lr=1.0), epochs=5, schedule=to.InverseClock()), weighting=Tempered(0.5)),
        rounds=20,
    )
    run = to.run(experiment)
    print(f"global_accuracy {run.final('global_accuracy'):.3f}, report: {run.report()}")
