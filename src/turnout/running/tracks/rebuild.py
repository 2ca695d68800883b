"""A run's trained values without its data: from the experiment's algorithm and the run's folder.

The track is prepared as for training, but with a federation of zeros, so that one place knows how a client's own model
is composed. Settings that need the data, other files or time (participation, events, selection, task, closing, stop
rules) are left out. The model is built again, and has the untrained values that the folder keeps.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.data.description import Description
from turnout.experiment import Algorithm, Experiment, Stop, World
from turnout.layout import lay_out
from turnout.parts.closing import WaitForAll
from turnout.parts.selection import Everyone
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.prepare import prepare, template_of, track_of
from turnout.running.tracks.track import Track
from turnout.tasks import Task


def rebuild(experiment: Experiment, data: Description, first: FirstValues, folder: Path) -> Track:
    """A track that can return models, on this machine's CPU; it cannot train."""
    changes: dict[str, Any] = {"world": World(data), "stop": Stop(), "algorithm.selection": Everyone()}
    changes["runtime"] = replace(experiment.runtime.compute, device="cpu", engine="loop", threads=1, chunk=1)
    if isinstance(experiment.algorithm, Algorithm):
        changes |= {"task": Task(_no_loss), "algorithm.closing": WaitForAll()}
    if first.complete and isinstance(experiment.algorithm, Algorithm):
        module = _template(experiment.but(start=None), data)
        first.refuse_other(FirstValues.of(module, lay_out(module, experiment.algorithm.personal)), folder, values=False)
        first.fill(module)
        changes |= {"model": module, "start": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how fast it would train
        track = prepare(experiment.but(**changes))
    if not first.complete:
        first.refuse_other(track.first, folder)
    return track


def built_now(experiment: Experiment, data: Description) -> FirstValues:
    """The initial values of the model that an experiment builds today."""
    if not isinstance(experiment.algorithm, Algorithm):
        return track_of(experiment).built_now(experiment, data)
    template = _template(experiment, data)
    return FirstValues.of(template, lay_out(template, experiment.algorithm.personal))


def _template(experiment: Experiment, data: Description) -> nn.Module:
    return template_of(experiment, data.input_shape, data.classes, data.sample(2))


def _no_loss(output: Tensor, target: Tensor) -> Tensor:
    return torch.zeros(len(target))
