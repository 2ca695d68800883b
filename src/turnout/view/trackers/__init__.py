"""Trackers: services that show a run's numbers while it runs. running/tracker.py says what a tracker promises.

tensorboard.py  event files
mlflow.py       a run on an MLflow server, or in a folder
wandb.py        a run at Weights & Biases
replay.py       sends recorded runs to a tracker afterwards

A library is loaded when its tracker is made.
"""

from __future__ import annotations

import importlib

from turnout.errors import UserError, nearest
from turnout.running.tracker import Tracker, own_tracker

TRACKERS = {
    "tensorboard": "turnout.view.trackers.tensorboard:TensorBoard",
    "mlflow": "turnout.view.trackers.mlflow:MLflow",
    "wandb": "turnout.view.trackers.wandb:WandB",
}


def make_tracker(name: str) -> Tracker:
    """The tracker that a name stands for: `tensorboard`, `tensorboard:DIR`, `package.module:MyTracker`."""
    kind, colon, place = name.partition(":")
    if kind in TRACKERS:
        if colon and not place:
            raise UserError(f"track {name!r}: write the place after the colon, or leave the colon out")
        module, _, class_name = TRACKERS[kind].partition(":")
        made: Tracker = getattr(importlib.import_module(module), class_name)(place or None)
        return made
    if not colon:
        raise UserError(f"there is no tracker {name!r}: {nearest(name, TRACKERS)}, or package.module:Name for your own")
    return own_tracker(name)
