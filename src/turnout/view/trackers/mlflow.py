"""MLflow: a run on a tracking server, or in a folder; the settings are its parameters."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from turnout.errors import UserError
from turnout.machine.optional import optional
from turnout.running.tracking import TrackedRun, reason

SECONDS = 2.0  # between two messages to the server
LONGEST = 500  # letters of a parameter
AT_ONCE = 100  # parameters, and 1000 numbers, in one message: MLflow's limit
# MLflow would try for minutes to reach a server that is gone, and the run would wait.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
ENDS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


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
