"""Trackers: services that show a run's numbers while it runs. running/tracking.py says what a tracker promises.

tensorboard.py  event files
mlflow.py       a run on an MLflow server, or in a folder
wandb.py        a run at Weights & Biases

A library is loaded when its tracker is made.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from turnout.errors import UserError, nearest
from turnout.running.records.finding import runs_in
from turnout.running.records.records import FILE
from turnout.running.tracking import TrackedRun, Tracker, flat, own_tracker, recorded

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


def replay(folder: Path, tracker: str) -> dict[str, str]:
    """Send the recorded runs of a folder to a tracker; what identifies each there, by its name."""
    runs, found = runs_in(folder), {}
    for run in runs.runs:
        made = make_tracker(tracker)
        found[run.name] = made.begin(TrackedRun(run.name, runs.title, run.path, settings=flat(run.settings())))
        for step, values in recorded(run.path / FILE):
            made.log(step, values)
        made.end("finished")
    return found
