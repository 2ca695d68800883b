"""A run's trained values without its data: from the experiment's algorithm and the run's folder.

The track is prepared as for training, but with a federation of zeros, so that one place knows how a client's own model
is composed. Settings that need the data, other files or time (participation, events, selection, task, closing, stop
rules) are left out; so is the model itself, if the folder has the names and initial values of its parameters.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from turnout.data.description import Description
from turnout.experiment import Algorithm, Experiment, Stop, World
from turnout.parts.closing import WaitForAll
from turnout.parts.selection import Everyone
from turnout.running.tracks.first_values import FirstValues, StandIn
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.track import Track
from turnout.tasks import PerSample


def rebuild(experiment: Experiment, data: Description, first: FirstValues | None) -> Track:
    """A track that can return models, on this machine's CPU; it cannot train."""
    changes: dict[str, Any] = {"world": World(data), "stop": Stop(), "algorithm.selection": Everyone()}
    plain: dict[str, Any] = {
        "device": "cpu",
        "engine": "loop",
        "threads": 1,
        "chunk": 1,
        "base_precision": "as-precision",
    }
    changes["runtime"] = replace(experiment.runtime.compute, **plain)
    if isinstance(experiment.algorithm, Algorithm):
        changes |= {"task": AnyOutput(), "algorithm.closing": WaitForAll(), "algorithm.privacy": None}
    if first is not None and first.complete:
        changes |= {"model": StandIn(first), "start": None}
        if getattr(experiment.algorithm, "personal", None) is not None:
            changes["algorithm.personal"] = first.stays_home
    bare = experiment.but(**changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how fast it would train
        return prepare(bare)


@dataclass(frozen=True)
class AnyOutput:
    """A task that accepts every model, since nothing is trained."""

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
        """Accept any output."""
