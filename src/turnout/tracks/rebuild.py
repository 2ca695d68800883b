"""A run's trained model without its data: from the experiment's model and algorithm, and what the folder keeps.

The track is prepared as for training, but for a federation of zeros, so that one place knows how a client's own model
is put together. What needs the data or other files (participation, events, devices, selection, task) is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from turnout.config.read import from_table
from turnout.data.description import Description
from turnout.experiment import Experiment, Stop, World
from turnout.parts.closing import WaitForAll
from turnout.parts.selection import Everyone
from turnout.task import PerSample
from turnout.tracks.prepare import prepare
from turnout.tracks.scores.settings import Scores
from turnout.tracks.track import Track
from turnout.world.devices.spreads import Alike

NEEDED = ("model", "algorithm", "evaluate", "runtime", "seed", "start")  # of an experiment, for its model


def needed_of(table: Mapping[str, Any]) -> Experiment:
    """What an experiment file says of the model; data that only a program has does not matter."""
    return from_table({name: value for name, value in table.items() if name in NEEDED})


def rebuild(experiment: Experiment, data: Description) -> Track:
    """A track that can hand out models, on this machine's CPU; it cannot train."""
    task = {} if isinstance(experiment.algorithm, Scores) else {"task": Unasked()}
    runtime = replace(experiment.runtime.compute, device="cpu", engine="loop", threads=1, chunk=1)
    closes = type(getattr(experiment.algorithm, "closing", WaitForAll())) is not WaitForAll
    world = World(data, devices=Alike() if closes else None)  # the state of a closing is a part of the checkpoint
    bare = experiment.but(world=world, runtime=runtime, stop=Stop(), **{"algorithm.selection": Everyone()}, **task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how fast it would train
        return prepare(bare)


@dataclass(frozen=True)
class Unasked:
    """A task that takes every model, since nothing is learned."""

    main: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False

    @property
    def metrics(self) -> dict[str, PerSample]:
        return {}

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return output.flatten(1).sum(1)

    def highest(self, target: Tensor, classes: int) -> Tensor:
        return target

    def check_output(self, output_shape: tuple[int, ...], target: Tensor) -> None:
        """Whatever it gives is right."""
