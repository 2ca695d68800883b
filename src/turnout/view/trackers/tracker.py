"""What a tracker promises, and how one is named: `tensorboard`, `tensorboard:DIR`, `package.module:MyTracker`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from turnout.errors import UserError, lacking, nearest
from turnout.running.config.dotted import usual_code


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker sees it.

    group     what it belongs to: the title of the runs that are made together, or its own
    first     the first round that will be told; the earlier ones were told before, or are told from the records
    before    what `begin` returned when this run was begun with this tracker; None the first time
    settings  the experiment, as paths and values
    """

    name: str
    group: str
    folder: Path
    first: int = 0
    before: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Tracker(Protocol):
    """Shows the numbers of a run elsewhere. It is made before the run begins, and refuses then what it cannot do."""

    def begin(self, run: TrackedRun) -> str:
        """A run begins or goes on. What is returned finds it again when the run is resumed."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers after `step` rounds (0: before training)."""
        ...

    def end(self, state: str) -> None:
        """The run is "finished", "failed" or "interrupted"."""
        ...


# What each is made by, with what follows the colon.
KNOWN = {
    "tensorboard": "turnout.view.trackers.tensorboard:TensorBoard",
    "mlflow": "turnout.view.trackers.mlflow:MLflow",
    "wandb": "turnout.view.trackers.wandb:WandB",
}


def make_tracker(said: str | Tracker) -> Tracker:
    """The tracker that a text names; an object of one's own is one already."""
    if not isinstance(said, str):
        return _checked(said, repr(said))
    kind, colon, place = said.partition(":")
    if kind in KNOWN:
        if colon and not place:
            raise UserError(f"track {said!r}: say where after the colon, or leave it out")
        module, _, name = KNOWN[kind].partition(":")
        made: Tracker = getattr(importlib.import_module(module), name)(place or None)
        return made
    if not colon:
        raise UserError(f"there is no tracker {said!r}: {nearest(said, KNOWN)}, or package.module:Name for your own")
    maker = usual_code().named(said, "track")
    if not isinstance(maker, type) or Tracker not in maker.__mro__:
        raise UserError(f"{said} is not declared to be a tracker: derive the class from turnout.roles.Tracker")
    return _checked(maker(), said)


def _checked(tracker: Any, said: str) -> Tracker:
    if missing := lacking(tracker, Tracker):
        raise UserError(f"{said} is no tracker, it lacks {', '.join(missing)}: see turnout.roles.Tracker")
    checked: Tracker = tracker
    return checked
