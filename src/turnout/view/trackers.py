"""Trackers: services that show a run's numbers while it runs. running/tracking.py says what a tracker promises.

A library is loaded when its tracker is made.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turnout.errors import UserError, nearest, optional
from turnout.running.records.finding import runs_in
from turnout.running.records.records import FILE
from turnout.running.tracking import TrackedRun, Tracker, flat, own_tracker, reason, recorded

SECONDS = 2.0  # between two messages to an MLflow server
LONGEST = 500  # letters of a parameter
AT_ONCE = 100  # parameters, and 1000 numbers, in one message: MLflow's limit
# MLflow would try for minutes to reach a server that is gone, and the run would wait.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
ENDS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class TensorBoard:
    """Event files; `tensorboard --logdir DIR` shows them. Without a folder, in the run's own, under `tensorboard`."""

    def __init__(self, place: str | None = None):
        optional("tensorboard", "tracking by TensorBoard", "tensorboard")
        self._library = optional("torch.utils.tensorboard", "tracking by TensorBoard", "tensorboard")
        self.place = place
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> str:
        names = [name.replace("/", "_") for name in dict.fromkeys((run.group, run.name))]
        folder = run.folder / "tensorboard" if self.place is None else Path(self.place, *names)
        # Later rounds that an earlier process logged are hidden: they are computed again.
        purge = run.first + 1 if run.before is not None else None
        self._writer = self._library.SummaryWriter(str(folder), purge_step=purge, flush_secs=5)
        if run.before is None and run.settings:
            rows = [f"| {name} | {value} |" for name, value in run.settings.items()]
            self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))
        return str(folder)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self, state: str) -> None:
        self._writer.close()


class MLflow:
    """An MLflow run. The default address is MLFLOW_TRACKING_URI, or MLflow's own default."""

    def __init__(self, place: str | None = None):
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self._library = optional("mlflow", "tracking by MLflow", "mlflow")
        try:
            self._client = self._library.MlflowClient(tracking_uri=place)
        except Exception as error:  # an address of no known kind, a package it lacks
            where = place or "its default place (mlflow:http://host:5000 names another)"
            raise UserError(f"MLflow at {where} cannot be used: {reason(error)}") from error
        self._waiting: list[Any] = []
        self._sent = 0.0
        self._run = ""

    def begin(self, run: TrackedRun) -> str:
        try:
            if run.before is not None:
                self._client.update_run(run.before, "RUNNING")
                self._run = run.before
            else:
                known = self._client.get_experiment_by_name(run.group)
                group = known.experiment_id if known is not None else self._client.create_experiment(run.group)
                made = self._client.create_run(group, run_name=run.name, tags={"folder": str(run.folder)})
                self._run, param = made.info.run_id, self._library.entities.Param
                params = [param(_allowed(name), str(value)[:LONGEST]) for name, value in run.settings.items()]
                for start in range(0, len(params), AT_ONCE):
                    self._client.log_batch(self._run, params=params[start : start + AT_ONCE])
        except Exception as error:  # the server is not there, or refuses
            raise UserError(f"MLflow cannot track this run: {reason(error)}") from error
        return self._run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._waiting += [self._library.entities.Metric(_allowed(n), v, now, step) for n, v in values.items()]
        if time.monotonic() - self._sent > SECONDS:
            self._send()

    def _send(self) -> None:
        for start in range(0, len(self._waiting), 10 * AT_ONCE):
            self._client.log_batch(self._run, metrics=self._waiting[start : start + 10 * AT_ONCE])
        self._waiting, self._sent = [], time.monotonic()

    def end(self, state: str) -> None:
        self._send()
        self._client.set_terminated(self._run, ENDS[state])


def _allowed(name: str) -> str:
    """A name with the characters MLflow allows.

    >>> _allowed("round/top 5 (all)")
    'round/top 5 _all_'
    """
    return re.sub(r"[^\w\-. /]", "_", name)


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


TRACKERS: dict[str, Callable[[str | None], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def make_tracker(name: str) -> Tracker:
    """The tracker that a name stands for: `tensorboard`, `tensorboard:DIR`, `package.module:MyTracker`."""
    kind, colon, place = name.partition(":")
    if kind in TRACKERS:
        if colon and not place:
            raise UserError(f"track {name!r}: write the place after the colon, or leave the colon out")
        return TRACKERS[kind](place or None)
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
