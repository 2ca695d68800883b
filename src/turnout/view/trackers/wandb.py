"""Weights & Biases: a run of a project; the settings are its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.errors import UserError
from turnout.machine.optional import optional
from turnout.running.tracking import TrackedRun, reason


class WandB:
    """A W&B run. Without a project: "turnout". WANDB_MODE=offline keeps it in the run's folder until `wandb sync`."""

    def __init__(self, place: str | None = None):
        self._library = optional("wandb", "tracking by W&B", "wandb")
        self.project = place or "turnout"
        self._run: Any = None

    def begin(self, run: TrackedRun) -> str:
        try:
            self._run = self._library.init(
                project=self.project, group=run.group, name=run.name, dir=str(run.folder), config=dict(run.settings),
                id=run.before, resume="allow", reinit="finish_previous",
                settings=self._library.Settings(silent=True, console="off"),
            )  # fmt: skip
        except Exception as error:  # no key, no network
            hint = "WANDB_MODE=offline keeps it here"
            raise UserError(f"W&B cannot track this run: {reason(error)} ({hint})") from error
        found: str = self._run.id
        return found

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "finished" else 1)
