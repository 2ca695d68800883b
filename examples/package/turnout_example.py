"""A part, a recipe and a command for Turnout; pyproject.toml announces each of them by an entry point.

pip install ./examples/package
turnout run tempered
turnout run examples/package/tempered.toml --out tempered
turnout replies tempered
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import turnout as to
from turnout.parts.weighting import scale
from turnout.types import Turnout


@dataclass(frozen=True)
class Tempered(to.weighting.Weighting):
    """a_k = (E / s_k)^power p_k: scheme B at power 0, scheme C at power 1.

    power  how much of the scaling to full work is applied
    """

    power: float = 0.5

    def client_scale(self, turnout: Turnout):
        return scale(turnout.progress_C, turnout.full_progress_C) ** self.power


def tempered() -> dict[str, to.Experiment]:
    """Schemes B and C, and half way between them."""
    experiment = to.Experiment(
        world=to.World(to.data.Synthetic(1.0, 1.0, clients=30), to.participation.Traces(first=5)),
        algorithm=to.Algorithm(to.Local(to.SGD(lr=1.0), epochs=5, schedule=to.InverseClock())),
        rounds=20,
    )
    powers = {"B": 0.0, "half way": 0.5, "C": 1.0}
    return {name: experiment.but(**{"algorithm.weighting": Tempered(power)}) for name, power in powers.items()}


def replies(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]) -> None:
    """Print the share of asked clients that replied."""
    with to.open_run(run).records() as records:
        rounds = records.rounds()
    print(f"{rounds['answered'].sum() / rounds['asked'].sum():.1%} of the clients that were asked replied")
